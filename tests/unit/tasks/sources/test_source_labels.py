"""A label of a dataset must change when its content does, and stay short."""

import pytest

from tasks.config.sources import DatasetSource, ModelSource
from tasks.sources.labels import corrected_name, dataset_label, model_label

HUB = DatasetSource(hub_id="nvidia/HelpSteer3", revision="main", train="preference/train.jsonl.gz")


@pytest.mark.parametrize(
    ("name", "corrected"),
    [
        ("own-2x128 · demo · cpu · demo", "own-2x128 · demo@5f0c · cpu · demo"),
        ("demo · demo · demo · demo", "demo · demo@5f0c · demo · demo"),
        ("demo", "demo"),
        ("retrain demo", "retrain demo"),
    ],
)
def test_a_run_or_model_that_is_called_as_its_data_keeps_its_name(name: str, corrected: str) -> None:
    assert corrected_name(name, guessed="demo", known="demo@5f0c") == corrected


def test_only_a_whole_part_of_a_name_is_corrected() -> None:
    name = corrected_name("own-2x128 · train · cpu-train", guessed="train", known="train@13bb")
    assert name == "own-2x128 · train@13bb · cpu-train"
    assert corrected_name("cancelled-train-policy", guessed="train", known="train@13bb") == "cancelled-train-policy"


@pytest.mark.parametrize(
    ("digest", "label"),
    [
        ("", "helpsteer3@main"),
        ("hub:2f1a" + "0" * 36, "helpsteer3@2f1a"),
        ("sha256:5f0c" + "0" * 60, "helpsteer3@5f0c"),
    ],
)
def test_a_branch_gives_way_to_what_it_was_resolved_to(digest: str, label: str) -> None:
    assert dataset_label(HUB, digest=digest) == label


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/data/HelpSteer3-mine.jsonl.gz", "helpsteer3-mine"),
        ("outputs/demo/data/train.jsonl", "demo"),
        ("train.parquet", "train"),
        ("/", "/"),
    ],
)
def test_local_data_has_the_first_name_that_says_something(path: str, label: str) -> None:
    assert dataset_label(DatasetSource(train=path)) == label


def test_local_data_carries_its_digest_once_it_is_known() -> None:
    assert dataset_label(DatasetSource(train="mine.jsonl"), digest="sha256:ab12" + "0" * 60) == "mine@ab12"


def test_a_model_is_named_by_the_last_part_of_its_id_or_path() -> None:
    assert model_label(ModelSource(hub_id="Qwen/Qwen3-8B", revision="main")) == "qwen3-8b"
    assert model_label(ModelSource(path="/models/My-Model/")) == "my-model"
