"""A form has the files of whoever serves, so it names none outside of the folder that is served."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows import served
from flows.config_errors import ConfigError, InvalidConfigError
from flows.form_folders import ALLOWED_VARIABLE
from flows.pipeline_form import load_form

FORM = served.rlhf_pipeline.fn
SECRET = "hf_canary41d7a9b8c7d6"


@pytest.fixture
def folder(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is served; beside it lies what is nobody's business."""
    served_folder = tmp_path / "served"
    shutil.copytree(project / "configs", served_folder / "configs")
    (tmp_path / "secret.yaml").write_text(f"token: {SECRET}\n")
    (tmp_path / "secret.jinja").write_text(SECRET)
    (tmp_path / "reader.py").write_text(f"def read_rows(path): yield '{SECRET}'\n")
    (served_folder / "link").symlink_to(tmp_path)
    monkeypatch.chdir(served_folder)
    return served_folder


def load(**values: Any) -> None:
    load_form(FORM, {"start_from": "demo", **values})


OUTSIDE = [
    "../elsewhere",
    "/elsewhere",
    "~/elsewhere",
    "outputs/../../elsewhere",
    "link/elsewhere",
    "/proc/self/cwd/../x",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("key", ["run.output_dir", "run.store_dir"])
def test_a_run_from_a_form_writes_below_the_served_folder(folder: Path, key: str, path: str) -> None:
    with pytest.raises(InvalidConfigError, match="lies outside of"):
        load(more_settings=[f"{key}={path}"])
    assert not (folder.parent / "elsewhere").exists()


@pytest.mark.parametrize("path", [".git/x", "outputs/.servers/prefect"])
def test_nor_into_what_belongs_to_the_servers(folder: Path, path: str) -> None:
    with pytest.raises(InvalidConfigError, match="whose name begins with a dot"):
        load(more_settings=[f"run.output_dir={path}"])


def test_a_run_configuration_that_writes_outside_is_refused_in_a_form_until_that_folder_is_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = folder / "configs/runs/demo.yaml"
    demo.write_text(demo.read_text().replace("run:\n", f"run:\n  store_dir: {folder.parent}/big/store\n", 1))
    with pytest.raises(InvalidConfigError, match=r"run.store_dir: .*rlhf serve --allow-folder"):
        load()
    monkeypatch.setenv(ALLOWED_VARIABLE, f"{folder.parent}/big")
    load()


@pytest.mark.parametrize(
    "setting",
    [
        "gpu_profile=../secret.yaml",
        "gpu_profile=link/secret.yaml",
        "train_reward_model.chat_template=../secret.jinja",
        "train_reward_model={chat_template: ../secret.jinja}",
        "dataset={train: ../secret.yaml, reader: ../reader.py}",
        "dataset={mixture: [{name: a, train: ../secret.yaml}]}",
        "dataset.reader=../reader.py",
        "tokenizer_file=/proc/self/environ",
        "base_model={path: ..}",
        "evaluate_reward_model.suites=[{name: a, path: /etc/shadow}]",
        "tracking.mlflow_uri=sqlite:////etc/mlflow.db",
        "tracking.mlflow_uri=file:///etc",
        "run.tags=[file:/etc/passwd]",
    ],
)
def test_no_file_outside_is_read_and_nothing_of_it_is_told(folder: Path, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(more_settings=[setting])
    assert "lies outside of" in str(caught.value) or "tracking.mlflow_uri" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_names_that_are_no_paths_stay_what_they_are(folder: Path) -> None:
    load(
        base_model="Qwen/Qwen3-8B",
        base_model_revision="main",
        more_settings=[
            "run.tags=[a/b, 'https://example.org/x']",
            "run.output_dir=outputs/mine",
            "train_policy.beta=0.1",
        ],
    )
