"""The model that judges the labels is an input as any other: known by content, fetched outside, checked before."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from containers.contracts.identity import SINGLE_BATCH, stage_profile
from containers.contracts.names import StageName
from containers.contracts.spec import StageInput
from tasks.check_system import run_checks
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.config.sources import whole_filter_config
from tasks.pipeline.inputs import filter_dataset_inputs
from tasks.pipeline.lookup import look_up_stages
from tasks.plan.run_plan import draft_plan
from tasks.sources.errors import SourceError
from tests.unit.factories.run_files import write_run
from tests.unit.factories.stage_keys import stage_key
from tests.unit.factories.weight_bytes import weight_bytes

MODEL_FILES = {
    "config.json": b"{}",
    "model.safetensors": weight_bytes(b"weights"),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}
PAIR = b'{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}\n'


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def run_with(folder: Path, reference: dict[str, str]) -> RunConfig:
    (folder / "train.jsonl").write_bytes(PAIR)
    (folder / "validation.jsonl").write_bytes(PAIR)
    filters = {"polarity": {"reference_reward_model": reference}}
    return load_run_config(write_run(folder, filter_dataset=filters, runtime={"kind": "process"})).config


def inputs_of(config: RunConfig) -> tuple[StageInput, ...]:
    return filter_dataset_inputs(config.filter_dataset, config.dataset, config.base_model)


def key_of(config: RunConfig) -> str:
    return stage_key(
        whole_filter_config(config.filter_dataset, config.dataset, ()),
        seed=0,
        inputs=inputs_of(config),
        code_digest="sha256:0",
        profile=stage_profile(config.gpu_profile, StageName.FILTER_DATASET),
        batch=SINGLE_BATCH,
    )


def test_a_model_of_the_hub_is_an_input_at_its_commit_and_a_newer_one_makes_another_key(
    hub: FakeHub, tmp_path: Path
) -> None:
    commit = hub.commit("models", "org/judge", MODEL_FILES)
    config = run_with(tmp_path, {"hub_id": "org/judge", "revision": "main"})
    found = {item.name: item for item in inputs_of(config)}["reference_reward_model"]
    assert found.digest == f"hub:{commit}"
    assert {path.name for path in Path(found.path).iterdir()} == set(MODEL_FILES)
    before = key_of(config)
    assert key_of(run_with(tmp_path, {"hub_id": "org/judge", "revision": commit})) == before
    hub.commit("models", "org/judge", {**MODEL_FILES, "model.safetensors": weight_bytes(b"more")})
    assert key_of(config) != before


def test_a_local_model_counts_by_its_content_and_not_by_its_place(hub: FakeHub, tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        for file, data in MODEL_FILES.items():
            (tmp_path / name / file).write_bytes(data)
    before = key_of(run_with(tmp_path, {"path": str(tmp_path / "here")}))
    assert key_of(run_with(tmp_path, {"path": str(tmp_path / "there")})) == before
    (tmp_path / "there/model.safetensors").write_bytes(weight_bytes(b"others"))
    assert key_of(run_with(tmp_path, {"path": str(tmp_path / "there")})) != before


def test_a_model_that_cannot_be_had_is_named_by_its_key_before_anything_starts(hub: FakeHub, tmp_path: Path) -> None:
    config = run_with(tmp_path, {"path": str(tmp_path / "gone")})
    with pytest.raises(SourceError, match=r"filter_dataset\.polarity\.reference_reward_model"):
        inputs_of(config)
    (row,) = [row for row in run_checks(config, draft_plan(config)) if row.name == "reference reward model"]
    assert row.verdict == "failure" and "gone" in row.found


def test_the_plan_knows_a_commit_without_the_hub_and_says_that_a_branch_may_have_moved(
    hub: FakeHub, tmp_path: Path
) -> None:
    commit = hub.commit("models", "org/judge", MODEL_FILES)
    asked = len(hub.requests)
    pinned = look_up_stages(run_with(tmp_path, {"hub_id": "org/judge", "revision": commit})).texts
    moving = look_up_stages(run_with(tmp_path, {"hub_id": "org/judge", "revision": "main"})).texts
    assert pinned[StageName.FILTER_DATASET].startswith("runs")
    assert "`main` of org/judge may have moved" in moving[StageName.FILTER_DATASET]
    assert len(hub.requests) == asked
