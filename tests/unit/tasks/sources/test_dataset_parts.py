"""A mixture and a person's own reader become inputs of the stage under names that it looks for."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from tasks.config.sources import DatasetSource, whole_filter_config
from tasks.pipeline.inputs import filter_dataset_inputs
from tasks.sources.errors import SourceError
from tasks.sources.resolve import probe_dataset, resolve_dataset

ROW = {"prompt": "Name a colour.", "chosen": "Red.", "rejected": "Blue."}


def rows(path: Path) -> str:
    path.write_text(json.dumps(ROW) + "\n")
    return str(path)


def mixture(folder: Path, **changes: Any) -> DatasetSource:
    a = {"name": "a", "train": rows(folder / "a.jsonl"), "validation": rows(folder / "av.jsonl"), "weight": 2}
    b = {"name": "b", "train": rows(folder / "b.jsonl"), "weight": 1.5}
    return DatasetSource.model_validate({"mixture": [a, {**b, **changes}]})


def test_each_source_of_a_mixture_is_an_input_of_its_own(tmp_path: Path) -> None:
    found = resolve_dataset(mixture(tmp_path), token=None)
    assert [(item.name, item.path.name) for item in found] == [
        ("train_data_a", "a.jsonl"),
        ("validation_data_a", "av.jsonl"),
        ("train_data_b", "b.jsonl"),
    ]
    assert probe_dataset(mixture(tmp_path), token=None).found.count("TRL preference, 1 rows") == 3


def test_the_stage_learns_weights_and_suites_and_neither_gates_nor_places(tmp_path: Path) -> None:
    suites = (SuiteFile(name="farm", path=rows(tmp_path / "suite.jsonl"), minimum_accuracy=0.9),)
    config = whole_filter_config(FilterDatasetConfig(), mixture(tmp_path), suites)
    assert [(share.name, share.weight) for share in config.mixture] == [("a", 2), ("b", 1.5)]
    assert config.suites[0].model_dump() == {"name": "farm", "benchmark": "pairs"}
    inputs = filter_dataset_inputs(config, mixture(tmp_path), None, suites)
    assert [item.name for item in inputs][-1] == "suite_farm"


def test_who_looks_for_no_contamination_needs_no_suites(tmp_path: Path) -> None:
    suites = (SuiteFile(name="farm", path=str(tmp_path / "nowhere.jsonl")),)
    config = whole_filter_config(FilterDatasetConfig(contamination="off"), mixture(tmp_path), suites)
    assert config.suites == ()
    assert not [item for item in filter_dataset_inputs(config, mixture(tmp_path), None, suites) if "suite" in item.name]


def test_a_plain_dataset_leaves_the_configuration_as_it_is(tmp_path: Path) -> None:
    source = DatasetSource(train=rows(tmp_path / "a.jsonl"))
    written = FilterDatasetConfig(policy_eval_prompt_fraction=0.1)
    assert whole_filter_config(FilterDatasetConfig(), source, ()) == written
    assert whole_filter_config(written, source, ()) == written
    assert (source.is_local, source.holds_out_by_prompt, mixture(tmp_path).holds_out_by_prompt) == (True, True, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "a"}, "2 sources named `a`"),
        ({"weight": None}, "source `b` has no weight"),
        ({"weight": 0}, "greater than 0"),
        ({"name": "Big Set"}, "should match pattern"),
        ({"train": ""}, "train is empty"),
        ({"hub_id": "org/set"}, "needs a `revision`"),
        ({"reader": "reader.sh"}, "no Python file"),
    ],
)
def test_a_mixture_with_a_mistake_is_refused_with_what_to_change(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        mixture(tmp_path, **changes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "train"),
        ({"train": ""}, "several sources under `mixture`"),
        ({"train": "x.jsonl", "mixture": [{"name": "a", "train": "a.jsonl"}]}, "train is set beside a mixture"),
        ({"validation": "x.jsonl", "mixture": [{"name": "a", "train": "a.jsonl"}]}, "validation is set beside"),
    ],
)
def test_a_dataset_is_one_source_or_a_mixture(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DatasetSource.model_validate(given)


def test_what_was_written_down_is_read_back(tmp_path: Path) -> None:
    source = mixture(tmp_path)
    assert DatasetSource.model_validate(source.model_dump(mode="json")) == source


def test_a_reader_is_an_input_whose_content_counts(tmp_path: Path) -> None:
    reader = tmp_path / "mine.py"
    source = DatasetSource(train=rows(tmp_path / "mine.tsv"), reader=str(reader))
    digests = set()
    for text in ("def read_rows(path):\n    yield {}\n", "def read_rows(path):\n    yield {1: 2}\n"):
        reader.write_text(text)
        (_, found) = resolve_dataset(source, token=None)
        assert found.name == "reader"
        digests.add(found.digest)
    assert len(digests) == 2
    assert "read by mine.py" in probe_dataset(source, token=None).found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist"),
        ("def read(path): ...\n", r"has no function read_rows\(path\)"),
        ("def read_rows(path:\n", "is no Python"),
    ],
)
def test_a_reader_that_cannot_work_is_told_before_anything_starts(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    source = DatasetSource(train=rows(tmp_path / "mine.tsv"), reader=str(tmp_path / "mine.py"))
    with pytest.raises(SourceError, match=said):
        probe_dataset(source, token=None)


def test_looking_a_reader_over_never_runs_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit\n\ndef read_rows(path):\n    yield {}\n")
    source = DatasetSource(train=rows(tmp_path / "mine.tsv"), reader=str(tmp_path / "mine.py"))
    assert len(resolve_dataset(source, token=None)) == 2
