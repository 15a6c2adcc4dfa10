"""A configuration that cannot work, through the real command: all of it said at once, exit code 2, nothing started."""

from pathlib import Path

import pytest
from short_runs import CONFIG, rlhf, traces


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run:\n  name: x\n  seed: [1, 2\n", "is no valid YAML: line 4, column 1"),
        ("run:\n\tname: x\n", "YAML indents with spaces, not tabs."),
        ("", "holds nothing"),
        ("run: {name: a, name: b}\n", "run.name: given twice"),
        ("run: !!python/object/apply:os.system [touch hacked]\n", "stands for no value of a configuration"),
        ("run: " + "[" * 500 + "]" * 500 + "\n", "nested deeper than 32 levels"),
    ],
    ids=["open bracket", "tab", "empty file", "key twice", "python object", "deep nesting"],
)
def test_a_broken_file_is_refused_with_its_place_and_nothing_is_started(folder: Path, text: str, said: str) -> None:
    (folder / CONFIG).write_text(text, encoding="utf-8")
    ended = rlhf(folder, "run")
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) <= 2
    assert ended.stdout == ""
    assert not (folder / "hacked").exists()
    assert traces(folder) == set()


def test_every_mistake_of_a_configuration_is_told_at_once(folder: Path) -> None:
    mistakes = {
        "train_policy.betta=1": "train_policy.betta: unknown key. Did you mean `beta`?",
        "train_policy.num_generations=0": "train_policy.num_generations: 0 is too few; wanted at least 1",
        "train_policy.beta=.nan": "train_policy.beta: nan found, wanted a finite number",
        "run.name=../../x": "run.name: `../../x` does not look as wanted",
        "gpu_profile=nope": "gpu_profile: `nope`: no such profile",
        "train_sft.schedule.max_steps=few": "train_sft.schedule.max_steps: `few` found, wanted a whole number",
        # Addresses and ports of servers, and what two keys get wrong together although others have mistakes too.
        "tracking.mlflow_uri=localhost:5000": "tracking.mlflow_uri: `localhost:5000` is no http(s) address",
        "tracking.prefect_api_url=htp://127.0.0.1/api": "tracking.prefect_api_url: `htp://127.0.0.1/api` is no http(s)",
        "train_policy.schedule.save_steps=51": "train_policy.schedule.save_steps: 51 would never save: the run has 50",
        "evaluate_reward_model.max_length=32": "evaluate_reward_model.max_length: 32 is below train_reward_model.max",
    }
    ended = rlhf(folder, "run", *mistakes)
    assert ended.returncode == 2
    assert f"has {len(mistakes)} mistakes" in ended.stderr
    for change, said in mistakes.items():
        assert said in ended.stderr
        assert f"(from --set {change})" in ended.stderr
    assert traces(folder) == set()


def test_one_port_for_two_servers_is_refused(folder: Path) -> None:
    ended = rlhf(folder, "run", "tracking.prefect_port=5123", "tracking.mlflow_port=5123")
    assert ended.returncode == 2
    assert "tracking.mlflow_port: 5123 is prefect_port too, and two servers cannot share a port." in ended.stderr
    assert traces(folder) == set()


def test_what_the_data_are_too_few_for_is_told_at_once_before_anything_starts(folder: Path) -> None:
    ended = rlhf(
        folder,
        "run",
        "train_reward_model.schedule={num_epochs: 0.5, eval_steps: 5000}",
        "train_sft.global_batch_size=8192",
        "filter_dataset.minimum_validation_pairs=5000",
    )
    assert ended.returncode == 2
    assert "has 3 mistakes" in ended.stderr
    assert "train_reward_model.schedule: eval_steps 5000 would never evaluate" in ended.stderr
    assert "train_sft.global_batch_size: 8192 is more than the " in ended.stderr
    assert "validation.jsonl gives at most " in ended.stderr
    assert "5,000 are required: minimum_validation_pairs (5,000)" in ended.stderr
    assert traces(folder) == set()


@pytest.mark.parametrize("place", [CONFIG, f"{CONFIG}/below"])
def test_a_file_where_the_output_folder_should_be_is_refused(folder: Path, place: str) -> None:
    before = (folder / CONFIG).read_bytes()
    ended = rlhf(folder, "run", f"run.output_dir={place}")
    assert ended.returncode == 2
    assert f"run.output_dir: {folder / CONFIG} is a file. Name a folder that can be written" in ended.stderr
    assert (folder / CONFIG).read_bytes() == before
    assert traces(folder) == set()
