"""`rlhf selftest` as a user calls it, on a profile of two ranks without GPUs: real programs, a real kill, one file."""

import json
import os
from pathlib import Path

import pytest

from containers.contracts.configs.selftest import Selftest
from containers.launch.gpus.inventory import read_gpus
from containers.launch.gpus.leases import FOLDER_VARIABLE, leased_gpus
from flows.cli.main import main
from tasks.checks.selftest.judging import RULES

pytestmark = [pytest.mark.slow, pytest.mark.stages]
DEMO = "configs/runs/demo.yaml"
NOT_ON_A_PROCESSOR = {"cards", "load"}


def selftest(*options: str) -> int:
    return main(["selftest", "--set", "runtime.kind=process", *options])


def test_two_ranks_on_a_processor_pass_and_the_file_says_it_all(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    two_ranks = ["--set", "gpu_profile.num_processes=2", "--set", "gpu_profile.name=cpu-2"]
    code = selftest("-c", str(project / DEMO), *two_ranks, "--set", f"run.store_dir={tmp_path / 'store'}")
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
    assert figures["resume"]["same_weights"] == 1.0
    assert figures["resume"]["resumed_from_step"] > 12, "after the save of the step in which SIGTERM came"
    assert figures["one_rank"]["first_loss"] < 1e-4
    assert figures["reward_step"]["largest_pack"] > 1000
    assert figures["memory"]["wrong_words"] == 0
    assert figures["kernels"]["gradient"] < 1e-4
    assert (found.profile, found.num_gpus, found.speed) == ("cpu-2", 0, None)
    assert figures["rollouts"]["apart"] < 1e-3 < figures["rollouts"]["moved"]
    assert "torch" in dict(found.packages)
    assert json.loads(path.read_text())["version"] == 1


def test_cards_that_torch_does_not_see_fail_each_probe_with_its_reason_and_are_given_back(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pretended driver with two cards, and a torch without CUDA: leases and rows are those of a GPU machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{project / 'tests' / 'fakes'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SMI", "ok")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    run = str(project / "configs/runs/helpsteer3-qwen3-8b.yaml")
    assert selftest("-c", run, "--profile", "1x48gb", "--set", f"run.store_dir={tmp_path / 'store'}") == 1
    (path,) = (tmp_path / "store" / "selftest").glob("*.json")
    found = Selftest.model_validate_json(path.read_bytes())
    rows = {row.probe: row for row in found.results}
    assert {probe for probe, row in rows.items() if row.verdict == "not run"} == {"connections", "one_rank"}
    assert rows["container"].verdict == "passed", "the program got the card of its lease"
    assert rows["cards"].why.startswith("NVIDIA driver: 570.86.15")
    for probe in (
        "memory",
        "kernels",
        "numbers",
        "reward_step",
        "policy_step",
        "signals",
        "resume",
        "rollouts",
        "policy_training",
        "load",
    ):
        assert "torch" in rows[probe].why and "sees none" in rows[probe].why, probe
    assert {value.name for value in rows["load"].values} >= {"temperature", "power", "throttled"}
    assert (found.card, found.speed) == ("NVIDIA RTX 6000 Ada Generation", None)
    assert not leased_gpus(read_gpus().uuids, folder=tmp_path / "leases")
    assert "one cause" in capsys.readouterr().out
