"""Arms in one comparison: what they share is made once, one that is killed goes on, and a limit of hours holds."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from short_runs import ENVIRONMENT, end, rlhf, start, wait_for_log

from containers.arms.records import PolicyComparison
from containers.contracts.names import POLICY_COMPARISON_FILE
from flows.demo.sums import write_sums
from tasks.run.budget import gpu_hours, read_costs

pytestmark = [pytest.mark.slow, pytest.mark.stages]

ARMS = "configs/arms/quick.yaml"
SHARED = ("filter_dataset", "filter_prompts", "build_base_model", "train_sft")
BY_PAIRS, BY_REWARDS = ("preferred-ft", "dpo"), ("rloo", "grpo", "dapo", "ppo")
# CI takes fewer; `make proofs` all six.
NAMES = tuple(os.environ.get("RLHF_ARMS", " ".join((*BY_PAIRS, *BY_REWARDS))).split())


@pytest.fixture
def place(tmp_path: Path, project: Path) -> Path:
    """The comparison of the project, on few sums and with few steps."""
    shutil.copytree(project / "configs", tmp_path / "configs")
    write_sums(tmp_path / "outputs/sums/data", seed=2, count=240)
    file = yaml.safe_load((project / "configs/arms/sums.yaml").read_text(encoding="utf-8"))
    file["set"] |= {
        "runtime.kind": "process",
        "tracking": {"prefect_port": 0, "mlflow_port": 0},
        "train_sft.schedule": {"max_steps": 40, "eval_steps": 40},
        "train_policy.schedule": {"max_steps": 40, "save_steps": 2},
        "train_policy.reward_trial": {"num_prompts": 0},
        "evaluate_policy.completions_per_prompt": 1,
    }
    file["arms"] = {name: file["arms"][name] for name in NAMES}
    for name in BY_PAIRS:
        if name not in NAMES:
            continue
        file["arms"][name]["set"]["train_dpo"]["schedule"] = {"max_steps": 4, "eval_steps": 4}
    if "dapo" in NAMES:
        file["arms"]["dapo"] = {"set": {"train_policy.algorithm": "dapo", "train_policy.parts": {"refill": False}}}
    (tmp_path / ARMS).write_text(yaml.safe_dump(file, sort_keys=False), encoding="utf-8")
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli.main", "arms", "-c", ARMS, *words]


def to_its_end(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=place,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def keys(place: Path, kind: str, stage: str) -> list[str]:
    return sorted(path.name for path in (place / "outputs/store" / kind / stage).glob("*") if len(path.name) == 64)


def test_arms_of_which_one_is_killed(place: Path) -> None:
    running = subprocess.Popen(
        command(),
        cwd=place,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for_log(running, place / "outputs/store", stage="train_policy", sign=r"step [89] of 40|step 1\d of 40")
        os.killpg(running.pid, signal.SIGKILL)
    finally:
        end(running)
    done = to_its_end(place)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for stage in SHARED:
        (key,) = keys(place, "attempts", stage)
        assert len(list((place / "outputs/store/attempts" / stage / key).glob("attempt-*"))) == 1
    by_rewards = [name for name in NAMES if name in BY_REWARDS]
    assert len(keys(place, "artifacts", "train_dpo")) == len(NAMES) - len(by_rewards)
    policies = keys(place, "artifacts", "train_policy")
    attempts = {
        key: sorted((place / "outputs/store/attempts/train_policy" / key).glob("attempt-*")) for key in policies
    }
    assert sorted(len(of) for of in attempts.values()) == [*[1] * (len(by_rewards) - 1), 2]
    (killed,) = (of for of in attempts.values() if len(of) == 2)
    assert "Resuming from checkpoint-" in (killed[1] / "stage.log").read_text(encoding="utf-8")
    assert_the_page_says(place, NAMES, by_rewards)
    again = to_its_end(place)
    assert again.returncode == 0
    assert len(keys(place, "artifacts", "compare_policies")) == 1


def assert_the_page_says(place: Path, names: Sequence[str], by_rewards: Sequence[str]) -> None:
    (key,) = keys(place, "artifacts", "compare_policies")
    file = place / "outputs/store/artifacts/compare_policies" / key / POLICY_COMPARISON_FILE
    found = PolicyComparison.model_validate(json.loads(file.read_text(encoding="utf-8")))
    assert found.arms == ("start", *names)
    assert [judge.name for judge in found.judges] == ["exact", "rewards"]
    # Each of them, and the start model, with each other one.
    assert len(found.judges[0].cells) == (len(names) + 1) * len(names) // 2
    assert found.judges[0].trained == tuple(by_rewards)
    page = (place / "outputs/sums-arms/report.html").read_text(encoding="utf-8")
    for name in names:
        assert f"over {name}" in page and f"arms/{name}/report.html" in page
    assert str(place) not in page


def test_arms_that_do_not_fit_the_budget_start_nothing(place: Path) -> None:
    file = yaml.safe_load((place / ARMS).read_text(encoding="utf-8"))
    file["max_gpu_hours"] = 0.0001
    (place / ARMS).write_text(yaml.safe_dump(file, sort_keys=False), encoding="utf-8")
    refused = to_its_end(place)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "max_gpu_hours: 0.0001 is less than the" in refused.stderr
    assert not (place / "outputs/store").exists()
    shown = to_its_end(place, "--plan")
    assert shown.returncode == 2 and "shared by several arms" in shown.stdout


def test_a_run_stops_at_its_limit_and_goes_on_with_a_higher_one(folder: Path) -> None:
    changes = ("run.name=limited", "train_sft.schedule.eval_steps=5", "train_sft.schedule.save_steps=5")
    into_training(folder, *changes, sign=r"step [1-9]\d+ of")
    # However fast the machine, the limit comes in the training.
    limit = f"{gpu_hours(read_costs(folder / 'outputs/limited')) + 0.007:.4f}"
    stopped = rlhf(folder, "run", *changes, f"run.max_gpu_hours={limit}")
    assert stopped.returncode == 1
    said = re.search(
        rf"failed \(budget_spent\): run\.max_gpu_hours is {limit.rstrip('0')}, and (0\.\d+) GPU hours were taken\. "
        r"Nothing that was finished is lost: set run\.max_gpu_hours higher",
        stopped.stdout,
    )
    assert said and float(said[1]) < float(limit) + 0.01, stopped.stdout[-3000:]
    assert (folder / "outputs/limited/report.html").is_file()
    at_once = rlhf(folder, "run", *changes, f"run.max_gpu_hours={limit}")
    assert at_once.returncode == 1 and "budget_spent" in at_once.stdout
    into_training(folder, *changes, "run.max_gpu_hours=1", sign="Resuming from checkpoint-")


def into_training(folder: Path, *changes: str, sign: str) -> None:
    """Run until the log of the fine-tuning has the sign, and stop it."""
    running = start(folder, *changes)
    try:
        wait_for_log(running, folder / "outputs/store", stage="train_sft", sign=sign)
        os.killpg(running.pid, signal.SIGTERM)
        running.communicate(timeout=60)
    finally:
        end(running)
