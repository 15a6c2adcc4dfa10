"""The house stays a house: layers, and one name per stage everywhere."""

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from containers.contracts.names import CONTAINER_STAGES, OVER_RUNS, StageName
from tasks.config.run import RunConfig
from tasks.pipeline.stages import STAGES

FORBIDDEN = ("torch", "transformers", "trl", "datasets", "peft", "accelerate")


def _loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*[name for name in sys.modules])"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


@pytest.mark.waits
def test_importing_these_loads_nothing_that_trains() -> None:
    """In one process: what none of them loads after another, none loads alone."""
    modules = ("containers.stages.entry", "flows.cli.main", "tasks.pipeline.run_stage", "flows.rlhf")
    assert not _loaded_after(f"import {', '.join(modules)}").intersection(FORBIDDEN)


def test_the_contract_loads_neither_prefect_nor_mlflow() -> None:
    loaded = _loaded_after(
        "import containers.contracts.spec, containers.contracts.records, containers.contracts.digests"
    )
    assert not loaded.intersection((*FORBIDDEN, "prefect", "mlflow", "docker"))


@pytest.mark.parametrize("stage", StageName)
def test_every_stage_has_a_task_of_its_name(stage: StageName, project: Path) -> None:
    assert (project / "tasks" / f"{stage}.py").is_file()
    assert f"def {stage}(" in (project / "tasks" / f"{stage}.py").read_text()


@pytest.mark.parametrize("stage", CONTAINER_STAGES)
def test_every_stage_behind_the_wall_has_a_program_of_its_name(stage: StageName) -> None:
    assert importlib.util.find_spec(f"containers.stages.{stage}") is not None


def test_every_stage_behind_the_wall_has_a_config_whose_discriminator_is_its_name() -> None:
    from typing import get_args

    from containers.contracts.configs.stages import StageConfig

    union = get_args(StageConfig)[0]
    names = {model.model_fields["stage"].default for model in get_args(union)}
    assert names == {str(stage) for stage in CONTAINER_STAGES}


@pytest.mark.waits  # `make check` runs lint-imports itself
def test_the_layers_of_the_import_contracts_hold(project: Path) -> None:
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(project / "pyproject.toml"), no_cache=True) == 0


def test_no_file_outgrew_its_question(project: Path) -> None:
    too_long = {
        str(path.relative_to(project)): lines
        for folder in ("flows", "tasks", "containers")
        for path in (project / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 330
    }
    assert not too_long


@pytest.mark.parametrize("tree", ["flows", "tasks", "containers", "tests"])
def test_every_room_is_seen_at_a_glance(tree: str, project: Path) -> None:
    files = Counter(path.parent for path in (project / tree).rglob("*.py"))
    assert {str(folder.relative_to(project)): count for folder, count in files.items() if count > 21} == {}


@pytest.mark.waits
def test_prefect_is_not_imported_before_its_address_is_known(project: Path) -> None:
    program = (
        "import flows.cli.main as cli, flows.cli.registry as known, sys; cli.build_parser(known.COMMANDS); "
        "import tasks.pipeline.lookup; sys.exit('prefect' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=project, check=False).returncode == 0


def test_no_two_test_files_share_a_name(project: Path) -> None:
    """pytest refuses to collect both in one go, and that is seen only where both are asked for."""
    names = Counter(path.name for path in (project / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_memory_is_read_with_the_limits_of_the_job_around(project: Path) -> None:
    """psutil tells the machine's, which is no help inside a job of 3 GB."""
    users = [
        str(path.relative_to(project))
        for folder in ("flows", "tasks", "containers")
        for path in (project / folder).rglob("*.py")
        if "virtual_memory(" in path.read_text()
    ]
    assert users == ["containers/launch/host_limits.py"]


def test_the_stage_table_configurations_and_docs_name_the_same_stages(project: Path) -> None:
    in_the_pipeline = [stage.name for stage in STAGES]
    assert [stage for stage in StageName if stage in in_the_pipeline] == in_the_pipeline
    assert set(StageName) - set(in_the_pipeline) == {StageName.CHECK_SYSTEM, StageName.WRITE_REPORT, *OVER_RUNS}
    configured = {
        name for path in (project / "configs/runs").glob("*.yaml") for name in yaml.safe_load(path.read_text())
    }
    of_stages = {stage.value for stage in CONTAINER_STAGES if stage not in OVER_RUNS}
    assert of_stages <= set(RunConfig.model_fields)
    assert of_stages <= configured <= set(RunConfig.model_fields)
    reference = (project / "docs/configuration.md").read_text(encoding="utf-8")
    assert [stage.value for stage in CONTAINER_STAGES if stage.value not in reference] == []
