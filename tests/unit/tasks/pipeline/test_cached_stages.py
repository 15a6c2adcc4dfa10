"""`rlhf plan` says which results are there as the run would find them, and neither asks a hub nor fetches anything."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fakes.hub_server import FakeHub

from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.stages import StageConfig
from containers.contracts.digests import content_digest, file_entries
from containers.contracts.identity import SINGLE_BATCH, stage_profile
from containers.contracts.manifest import Manifest
from containers.contracts.names import MANIFEST_FILE, StageName
from containers.contracts.spec import StageInput
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.pipeline.inputs import filter_dataset_inputs, filter_prompts_inputs, named_model_input
from tasks.pipeline.lookup import finished_artifacts, look_up_stages
from tasks.pipeline.stages import required_config
from tasks.run.runtime import code_identity
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
DATA_FILES = {"train.jsonl": PAIR, "validation.jsonl": PAIR}
STAGES_OF_THE_MODEL = (StageName.TRAIN_REWARD_MODEL, StageName.EVALUATE_REWARD_MODEL, StageName.TRAIN_POLICY)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def run_from_hub(folder: Path, *, model: str, data: str, **sections: Any) -> RunConfig:
    dataset = {"hub_id": "org/pairs", "revision": data, "train": "train.jsonl", "validation": "validation.jsonl"}
    base_model = {"hub_id": "org/tiny", "revision": model}
    runtime = {"kind": "process"}
    tree = {"dataset": dataset, "base_model": base_model, "build_base_model": None, "runtime": runtime, **sections}
    return load_run_config(write_run(folder, **tree)).config


def publish(config: RunConfig, stage_config: StageConfig, inputs: Sequence[StageInput]) -> str:
    """An artifact of the stage where a run would put it; returns its digest."""
    stage = StageName(stage_config.stage)
    key = stage_key(
        stage_config,
        seed=config.run.seed,
        inputs=inputs,
        code_digest=code_identity("process", image=config.image).program(stage_config).digest,
        profile=stage_profile(config.gpu_profile, stage),
        batch=SINGLE_BATCH,
    )
    folder = config.store_dir.resolve() / "artifacts" / stage / key
    folder.mkdir(parents=True)
    (folder / "pairs.parquet").write_bytes(b"pairs")
    manifest = Manifest(
        stage=stage,
        key=key,
        files=file_entries(folder),
        metrics=(),
        lineage=(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return content_digest(manifest.files)


def publish_pairs(config: RunConfig) -> None:
    """The artifact of filter_dataset."""
    assert config.dataset is not None
    inputs = filter_dataset_inputs(config.filter_dataset, config.dataset, None)
    publish(config, required_config(config, StageName.FILTER_DATASET), inputs)


@pytest.mark.parametrize("max_tokens", [None, 512], ids=["characters", "tokens"])
def test_pinned_commits_have_the_keys_of_the_run_and_nobody_is_asked(
    hub: FakeHub, tmp_path: Path, max_tokens: int | None
) -> None:
    model, data = hub.commit("models", "org/tiny", MODEL_FILES), hub.commit("datasets", "org/pairs", DATA_FILES)
    config = run_from_hub(tmp_path, model=model, data=data, filter_dataset={"max_tokens": max_tokens})
    assert look_up_stages(config).texts[StageName.FILTER_DATASET] == "runs: this run has no result of it yet"
    assert hub.requests == [], "not fetched, and still known"
    fetched = filter_dataset_inputs(config.filter_dataset, config.dataset, config.base_model)
    assert len(fetched) == (2 if max_tokens is None else 3)
    publish(config, required_config(config, StageName.FILTER_DATASET), fetched)
    asked = list(hub.requests)
    hub.status = 500
    found = look_up_stages(config).texts
    assert found[StageName.FILTER_DATASET].startswith("reused, made ")
    assert found[StageName.TRAIN_REWARD_MODEL] == "runs: this run has no result of it yet"
    assert found[StageName.TRAIN_POLICY] == "runs"
    assert hub.requests == asked


def test_a_pinned_model_is_the_same_input_as_a_fetched_one(hub: FakeHub, tmp_path: Path) -> None:
    from tasks.sources.pinned import pinned_dataset_inputs, pinned_model_input
    from tasks.sources.resolve import resolve_dataset

    model, data = hub.commit("models", "org/tiny", MODEL_FILES), hub.commit("datasets", "org/pairs", DATA_FILES)
    config = run_from_hub(tmp_path, model=model, data=data)
    assert config.base_model is not None
    wanted = named_model_input(config.base_model)
    found = pinned_model_input(config.base_model, name="start_model")
    assert (found.name, found.digest, found.origin) == (wanted.name, wanted.digest, wanted.origin)
    resolved = resolve_dataset(config.dataset, token=None)
    assert [(item.name, item.digest, item.origin) for item in pinned_dataset_inputs(config.dataset)] == [
        (item.name, item.digest, item.origin) for item in resolved
    ]


def test_a_branch_of_the_model_hides_only_what_starts_from_the_model(hub: FakeHub, tmp_path: Path) -> None:
    data = hub.commit("datasets", "org/pairs", DATA_FILES)
    hub.commit("models", "org/tiny", MODEL_FILES)
    config = run_from_hub(tmp_path, model="main", data=data)
    publish(
        config,
        required_config(config, StageName.FILTER_DATASET),
        filter_dataset_inputs(config.filter_dataset, config.dataset, None),
    )
    asked = list(hub.requests)
    found = look_up_stages(config).texts
    assert found[StageName.FILTER_DATASET].startswith("reused, made ")
    unknown = "not known until the hub is queried: `main` of org/tiny may have moved"
    assert {found[stage] for stage in STAGES_OF_THE_MODEL} == {unknown}
    assert hub.requests == asked


def test_nothing_behind_the_end_of_the_run_is_looked_up(hub: FakeHub, tmp_path: Path) -> None:
    model, data = hub.commit("models", "org/tiny", MODEL_FILES), hub.commit("datasets", "org/pairs", DATA_FILES)
    whole = run_from_hub(tmp_path, model=model, data=data)
    publish(
        whole,
        required_config(whole, StageName.FILTER_DATASET),
        filter_dataset_inputs(whole.filter_dataset, whole.dataset, None),
    )
    assert finished_artifacts(whole) is None
    part = run_from_hub(tmp_path, model=model, data=data, run={"name": "small", "until": "filter_dataset"})
    assert list(finished_artifacts(part) or ()) == [StageName.FILTER_DATASET]
    assert list(look_up_stages(part).texts) == [
        StageName.CHECK_SYSTEM,
        StageName.FILTER_DATASET,
        StageName.WRITE_REPORT,
    ]


def test_a_missing_result_hides_only_the_stages_that_read_it(hub: FakeHub, tmp_path: Path) -> None:
    model, data = hub.commit("models", "org/tiny", MODEL_FILES), hub.commit("datasets", "org/pairs", DATA_FILES)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Name a colour."}\n')
    config = run_from_hub(tmp_path, model=model, data=data, prompts={"train": str(prompts)})
    filters = config.stage_config(StageName.FILTER_PROMPTS)
    assert config.prompts is not None and isinstance(filters, FilterPromptsConfig)
    publish(config, filters, filter_prompts_inputs(config.filter_prompts, config.prompts, ()))
    found = look_up_stages(config).texts
    assert found[StageName.FILTER_DATASET] == "runs: this run has no result of it yet"
    assert found[StageName.FILTER_PROMPTS].startswith("reused, made ")
    assert found[StageName.TRAIN_REWARD_MODEL] == "runs"


def test_a_branch_of_the_dataset_hides_everything(hub: FakeHub, tmp_path: Path) -> None:
    model = hub.commit("models", "org/tiny", MODEL_FILES)
    config = run_from_hub(tmp_path, model=model, data="v1.0")
    found = look_up_stages(config).texts
    unknown = "not known until the hub is queried: `v1.0` of org/pairs may have moved"
    assert {found[stage] for stage in (StageName.FILTER_DATASET, *STAGES_OF_THE_MODEL)} == {unknown}
    assert found[StageName.WRITE_REPORT] == "runs"
    assert hub.requests == []


def test_data_that_are_not_here_are_said_shortly_and_what_else_is_missing_by_its_path(tmp_path: Path) -> None:
    def texts(**sections: Any) -> set[str]:
        config = load_run_config(write_run(tmp_path, runtime={"kind": "process"}, **sections)).config
        found = look_up_stages(config).texts
        return {found[stage] for stage in (StageName.FILTER_DATASET, *STAGES_OF_THE_MODEL)}

    dataset = {key: str(tmp_path / f"{key}.jsonl") for key in ("train", "validation")}
    assert texts(dataset=dataset) == {"not known: its data is not here"}
    for place in dataset.values():
        Path(place).write_bytes(PAIR)
    suite = {"name": "own", "path": str(tmp_path / "gone.jsonl")}
    (text,) = texts(dataset=dataset, evaluate_reward_model={"suites": [suite]})
    assert text.startswith("not known: ") and f"{suite['path']} does not exist" in text


def test_a_local_model_beside_a_pinned_dataset_is_looked_up_too(hub: FakeHub, tmp_path: Path) -> None:
    data = hub.commit("datasets", "org/pairs", DATA_FILES)
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in MODEL_FILES.items():
        (folder / name).write_bytes(content)
    config = run_from_hub(tmp_path, model="", data=data, base_model={"path": str(folder)})
    publish(
        config,
        required_config(config, StageName.FILTER_DATASET),
        filter_dataset_inputs(config.filter_dataset, config.dataset, None),
    )
    found = look_up_stages(config).texts
    assert found[StageName.TRAIN_REWARD_MODEL] == "runs: this run has no result of it yet"


def test_without_the_daemon_that_a_run_asks_for_the_plan_says_that_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    config = load_run_config(write_run(tmp_path), overrides=["runtime.kind=docker"]).config
    texts = look_up_stages(config).texts
    assert tuple(texts) == config.stages
    assert {text.partition(":")[0] for text in texts.values()} == {"not known"}
    assert all("No Docker daemon can be used" in text for text in texts.values())
