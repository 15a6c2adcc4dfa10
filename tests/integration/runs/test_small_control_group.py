"""In a control group of 3 GiB, made for the test, every part of a run sees 3 GiB, however much the machine has."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.hardware import GIB, MeasuredContract, RequiredContract
from containers.contracts.names import StageName
from tests.faults.memory_cgroup import memory_cgroup
from tests.unit.factories.spec_factory import make_spec

LIMIT_MIB = 3 * 1024
MEASURE = """
import sys
from pathlib import Path
from containers.contracts.spec import StageSpec
from containers.harness.measure import measure_contract
print(measure_contract(StageSpec.model_validate_json(Path(sys.argv[1]).read_bytes())).model_dump_json())
"""
# The program starts once it is in the group, so that all that it does is done there.
WAITS = ("sh", "-c", 'read -r line && exec "$@"', "sh")
Run = Callable[..., str]


@pytest.fixture
def in_small_group(project: Path) -> Iterator[Run]:
    """Runs Python in the group and gives what it prints."""
    with memory_cgroup() as group:
        group.limit_mib(LIMIT_MIB)

        def run(*arguments: str) -> str:
            process = subprocess.Popen(
                [*WAITS, sys.executable, *arguments],
                cwd=project,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            group.add(process)
            return process.communicate(b"go\n", timeout=300)[0].decode()

        yield run


def test_the_contract_of_a_stage_records_the_limit_of_its_group(tmp_path: Path, in_small_group: Run) -> None:
    required = RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False, host_memory_bytes=2 * GIB)
    spec = make_spec(tmp_path, StageName.WRITE_REPORT, WriteReportConfig(), {}).model_copy(
        update={"required": required}
    )
    (tmp_path / "asked.json").write_text(spec.model_dump_json())
    said = in_small_group("-c", MEASURE, str(tmp_path / "asked.json"))
    measured = TypeAdapter(MeasuredContract).validate_json(said)
    assert measured.memory_bytes == 3 * GIB
    limit = next(item for item in measured.findings if item.name == "memory limit")
    assert (limit.wanted, limit.found, limit.verdict) == ("2.00 GiB", "3.00 GiB", "not enforced")


def test_the_plan_tells_the_memory_of_the_group_and_warns_where_a_stage_needs_more(in_small_group: Run) -> None:
    plan = in_small_group(
        "-m", "flows.cli.main", "plan", "-c", "configs/runs/helpsteer3-qwen3-8b.yaml", "--profile", "cpu"
    )
    memory = next(line for line in plan.splitlines() if line.startswith("  memory "))
    assert "of 3.00 GiB" in memory
    assert "WARNING: memory: " in plan and "3.00 GiB" in plan.partition("WARNING: memory: ")[2].splitlines()[0]


def test_the_check_refuses_what_the_group_cannot_hold(in_small_group: Run) -> None:
    program = (
        "from containers.contracts.hardware import GpuProfile as P\n"
        "from containers.launch.preflight import memory_finding\n"
        "profile = P(name='cpu', num_gpus=0, precision='float32')\n"
        "print(memory_finding(profile, needed_bytes=4 * 1024**3, runtime='process').model_dump_json())\n"
    )
    assert '"verdict":"failure"' in in_small_group("-c", program)
    assert "of 3.00 GiB" in in_small_group("-c", program)
