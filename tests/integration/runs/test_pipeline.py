"""The whole pipeline with real servers, as `rlhf run` does it: what a user relies on after it ended."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from containers.contracts.names import MERGED_FOLDER, StageName
from containers.data.reader import read_rows
from flows.demo.rows import write_demo_data

pytestmark = [pytest.mark.slow, pytest.mark.stages]

# Enough steps to tell right from wrong, too few to be good: the gates ask for less than the demo's.
SHORT = {
    "train_sft": {"completions": "chosen", "schedule": {"max_steps": 75, "eval_steps": 25}},
    "train_reward_model": {"schedule": {"max_steps": 120, "eval_steps": 40}},
    "evaluate_reward_model": {
        "suites": [
            {"name": "labelled_pairs", "path": "outputs/demo/data/labelled_pairs.jsonl", "minimum_accuracy": 0.6}
        ]
    },
    # Every stage takes part but train_dpo, which would train the policy in place of train_policy. Prompts and
    # demonstrations are sets of their own, whose rows happen to be those of the pairs.
    "prompts": {"train": "outputs/demo/data/train.jsonl"},
    "filter_prompts": {"similar_prompts": "report"},
    "demonstrations": {"train": "outputs/demo/data/demonstrations.jsonl"},
    "filter_demonstrations": {"similar_prompts": "report"},
    "train_policy": {"schedule": {"max_steps": 4, "save_steps": 2}},
    "evaluate_policy": {"max_prompts": 16},
    "gates": {
        # A model of so few steps may count tokens.
        "reward_model": {"minimum_accuracy": 0.6, "maximum_length_effect": 2.0, "maximum_padding_flips": 1.0},
        "policy": {"waive": {"by": "the test", "reason": "four steps prove nothing about the policy"}},
    },
    "runtime": {"kind": "process"},
    "tracking": {"prefect_port": 0, "mlflow_port": 0},
}


NOT_MADE = (
    StageName.CHECK_SYSTEM,
    StageName.COMPUTE_REFERENCE,
    StageName.TRAIN_DPO,
    StageName.ANSWER_SETS,
    StageName.EVALUATE_SETS,
    StageName.COMPARE_POLICIES,
    StageName.WRITE_REPORT,
)
MADE = [stage for stage in StageName if stage not in NOT_MADE]


@dataclass(frozen=True)
class Run:
    """A project folder of one run, and what the last command said."""

    folder: Path
    ended: subprocess.CompletedProcess[str]

    @property
    def output(self) -> Path:
        return self.folder / "outputs" / "demo"

    def artifact(self, stage: StageName) -> Path:
        return self.output / "artifacts" / stage


def _merge(base: dict, changes: dict) -> dict:  # type: ignore[type-arg]
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value) if both else value
    return merged


def _prepare(folder: Path, project: Path, *, flip_labels: bool = False) -> None:
    shutil.copytree(project / "configs", folder / "configs")
    config = yaml.safe_load((project / "configs/runs/demo.yaml").read_text())
    (folder / "configs/runs/short.yaml").write_text(yaml.safe_dump(_merge(config, SHORT)))
    data = folder / "outputs/demo/data"
    write_demo_data(data, flip_labels=flip_labels)
    # The demo's rows have flaws of every kind on purpose.
    rows = [found.row for found in read_rows(data / "train.jsonl") if found.row is not None and not found.row.is_tie]
    talks = [[*row.prompt, {"role": "assistant", "content": row.pair.chosen}] for row in rows]
    lines = [json.dumps({"messages": turns}) + "\n" for turns in talks]
    (data / "demonstrations.jsonl").write_text("".join(lines), encoding="utf-8")


def _rlhf(folder: Path, *arguments: str) -> Run:
    command = [sys.executable, "-m", "flows.cli.main", "run", "-c", "configs/runs/short.yaml", *arguments]
    return Run(folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Run:
    folder = tmp_path_factory.mktemp("pipeline")
    _prepare(folder, project)
    run = _rlhf(folder)
    assert run.ended.returncode == 0, run.ended.stdout + run.ended.stderr
    return run


def test_every_stage_left_a_verified_artifact_and_the_report_stands(run: Run) -> None:
    for stage in (*MADE, StageName.WRITE_REPORT):
        assert (run.artifact(stage) / "MANIFEST.json").is_file()
    assert "Waived by the test" in (run.output / "report.html").read_text()


def test_the_reward_model_gives_the_logged_scores_in_plain_transformers(run: Run) -> None:
    folder = run.artifact(StageName.TRAIN_REWARD_MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder / MERGED_FOLDER)
    model = AutoModelForSequenceClassification.from_pretrained(folder / MERGED_FOLDER).eval()
    samples = json.loads((folder / "sample_predictions.json").read_text())
    assert samples
    for sample in samples:
        for side in ("chosen", "rejected"):
            conversation = [*sample["prompt"], {"role": "assistant", "content": sample[side]}]
            tokens = tokenizer.apply_chat_template(conversation, return_tensors="pt", return_dict=True)
            with torch.no_grad():
                score = model(**tokens).logits.item()
            assert score == pytest.approx(sample[f"score_{side}"], abs=1e-4)


def test_the_same_command_again_reuses_everything_and_starts_no_program(run: Run) -> None:
    again = _rlhf(run.folder)
    assert again.ended.returncode == 0, again.ended.stdout + again.ended.stderr
    assert again.ended.stdout.count("reused") == len(MADE)
    assert [line for line in again.ended.stdout.splitlines() if line.startswith("…")] == []
    assert "Starting Prefect" not in again.ended.stdout  # there is nothing that a server would be needed for
    assert str(run.output / "report.html") in again.ended.stdout


def test_a_damaged_artifact_is_named_and_made_again_with_the_same_content(run: Run) -> None:
    folder = run.artifact(StageName.FILTER_DATASET)
    victim = folder / "train.parquet"
    before = victim.read_bytes()
    victim.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    again = _rlhf(run.folder)
    assert again.ended.returncode == 0, again.ended.stdout + again.ended.stderr
    assert "train.parquet was changed" in again.ended.stdout
    assert (folder / "train.parquet").read_bytes() == before
    assert again.ended.stdout.count("reused") == len(MADE) - 1  # nothing that depends on it runs again


def test_inverted_labels_are_noticed_and_no_policy_is_trained(tmp_path: Path, project: Path) -> None:
    _prepare(tmp_path, project, flip_labels=True)
    run = _rlhf(tmp_path)
    assert run.ended.returncode == 1
    assert "accuracy on labelled_pairs" in run.ended.stdout
    assert not (run.output / "artifacts" / StageName.TRAIN_POLICY).exists()
    assert "did not pass its gate" in (run.output / "report.html").read_text()
