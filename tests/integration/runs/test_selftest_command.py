"""`rlhf selftest` as a user calls it, on a profile of two ranks without GPUs: real programs, a real kill, one file."""

import json
from pathlib import Path

import pytest

from containers.contracts.configs.selftest import Selftest
from flows.cli.main import main
from tasks.checks.selftest.judging import RULES

pytestmark = [pytest.mark.slow, pytest.mark.stages]
NOT_ON_A_PROCESSOR = {"cards", "load"}


def test_two_ranks_on_a_processor_pass_and_the_file_says_it_all(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "gpu_profile.num_processes": 2,
        "gpu_profile.name": "cpu-2",
        "runtime.kind": "process",
        "run.store_dir": tmp_path / "store",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    code = main(["selftest", "-c", str(project / "configs/runs/demo.yaml"), *options])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    (path,) = (tmp_path / "store" / "selftest").glob("*.json")
    assert str(path) in said.out.replace("\n", "")
    assert [*path.parent.iterdir()] == [path], "no work folder is left"
    found = Selftest.model_validate_json(path.read_bytes())
    assert [row.probe for row in found.results] == [*RULES]
    verdicts = {row.probe: (row.verdict, row.why) for row in found.results}
    for probe, (verdict, why) in verdicts.items():
        assert verdict == ("not run" if probe in NOT_ON_A_PROCESSOR else "passed"), (probe, why)
    assert {why for probe, (_, why) in verdicts.items() if probe in NOT_ON_A_PROCESSOR} == {"the profile has no GPUs"}
    figures = {row.probe: {value.name: value.value for value in row.values} for row in found.results}
    assert figures["resume"]["equal"] == 1.0
    assert figures["resume"]["resumed_from_step"] > 12, "after the save of the step in which SIGTERM came"
    assert figures["one_rank"]["first_loss"] < 1e-4
    assert figures["reward_step"]["at_a_time"] > 1000
    assert figures["memory"]["wrong_words"] == 0
    assert figures["kernels"]["gradient"] < 1e-4
    assert (found.profile, found.num_gpus, found.speed) == ("cpu-2", 0, None)
    assert "torch" in dict(found.packages)
    assert json.loads(path.read_text())["version"] == 1
