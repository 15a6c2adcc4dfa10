"""A mixture is a dataset like any other: loaded, planned, named and looked up before anything runs."""

import json
from pathlib import Path

import pytest

from tasks.config.errors import ConfigError
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.pipeline.lookup import look_up_stages
from tasks.plan.run_plan import draft_plan
from tasks.sources.labels import dataset_label

ROW = {"prompt": "Name a colour.", "chosen": "Red.", "rejected": "Blue."}

YAML = """
run: {{name: mixed, output_dir: {folder}/out}}
gpu_profile: cpu
dataset:
  mixture:
    - {{name: soups, train: {folder}/soups.jsonl, weight: 3}}
    - {{name: friends, train: {folder}/friends.jsonl, validation: {folder}/held_out.jsonl, weight: 1}}
build_base_model: {{}}
evaluate_reward_model:
  suites: [{{name: farm, path: {folder}/friends.jsonl}}]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name, count in (("soups", 300), ("friends", 200), ("held_out", 50)):
        rows = (json.dumps({**ROW, "prompt": f"Question {number}?"}) + "\n" for number in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    (tmp_path / "run.yaml").write_text(YAML.format(folder=tmp_path))
    return tmp_path / "run.yaml"


def load(path: Path, *overrides: str) -> LoadedConfig:
    return load_run_config(path, overrides=overrides, profile=None)


def test_it_is_loaded_named_planned_and_looked_up(path: Path) -> None:
    loaded = load(path)
    assert dataset_label(loaded.config.dataset) == "soups+friends"
    plan = draft_plan(loaded.config)
    assert plan.dataset == "soups + friends: rows counted before weights and filters"
    assert all(text.startswith("runs") for text in look_up_stages(loaded.config).texts.values())


def test_what_is_written_down_loads_again(path: Path) -> None:
    first = load(path)
    again = path.with_name("again.yaml")
    again.write_text(first.yaml_text)
    assert load(again).config.dataset == first.config.dataset


def test_a_mistake_in_a_source_is_named_with_its_place(path: Path) -> None:
    path.write_text(path.read_text().replace("weight: 3", "weigth: 3"))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "dataset.mixture" in str(caught.value) and "weigth" in str(caught.value)


def test_too_few_rows_of_all_sources_together_are_told_before_the_start(path: Path) -> None:
    (mistake,) = draft_plan(load(path, "filter_dataset.minimum_train_pairs=1000").config).mistakes
    assert "the mixture gives at most 500 pairs" in mistake.text
