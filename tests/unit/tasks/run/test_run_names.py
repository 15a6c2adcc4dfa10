"""Runs in a list are told apart by their names alone; a name must say model, data and machine."""

from pathlib import Path

import pytest

from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.run.names import flow_run_name, run_tags, run_title
from tests.unit.factories.run_files import write_run

COMMIT = "2f1a" + "0" * 36


def config_of(folder: Path, **sections: object) -> RunConfig:
    return load_run_config(write_run(folder, **sections)).config


def production(folder: Path, revision: str) -> RunConfig:
    return config_of(
        folder,
        build_base_model=None,
        base_model={"hub_id": "Qwen/Qwen3-8B", "revision": "b" * 40},
        dataset={"hub_id": "nvidia/HelpSteer3", "revision": revision, "train": "preference/train.jsonl.gz"},
    )


@pytest.mark.parametrize(("revision", "shown"), [(COMMIT, "2f1a"), ("main", "main")])
def test_a_run_is_named_after_model_dataset_and_profile(tmp_path: Path, revision: str, shown: str) -> None:
    assert run_title(production(tmp_path, revision)) == f"qwen3-8b · helpsteer3@{shown} · small"


def test_a_model_built_here_is_named_by_its_size_and_local_data_by_a_telling_folder(tmp_path: Path) -> None:
    dataset = {"train": "outputs/demo/data/train.jsonl"}
    config = config_of(tmp_path, dataset=dataset, build_base_model={"num_layers": 2, "hidden_size": 128})
    assert run_title(config) == "own-2x128 · demo · small"


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        ("rlhf run -c configs/runs/small.yaml --set run.seed=1", ""),
        ("rlhf run --config configs/runs/base.yaml --set run.name=small", " · small"),
        ("rlhf retrain", ""),
        ("", ""),
    ],
)
def test_a_run_that_is_not_called_as_its_file_has_its_name_in_the_title(
    tmp_path: Path, command: str, ending: str
) -> None:
    config = config_of(tmp_path, run={"name": "small"})
    assert run_title(config, command=command) == f"{run_title(config)}{ending}"


def test_the_tags_are_the_runs_own_then_its_name_profile_and_runtime(tmp_path: Path) -> None:
    config = config_of(tmp_path, run={"name": "small", "tags": ["night", "run:small"]})
    assert run_tags(config, runtime="docker") == ("night", "run:small", "profile:small", "runtime:docker")


def test_a_flow_without_a_config_is_told_so() -> None:
    with pytest.raises(TypeError, match="`config` is a NoneType, and a RunConfig is wanted"):
        flow_run_name()
