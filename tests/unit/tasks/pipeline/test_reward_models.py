"""`reward_model` of a run takes what `--model` of a command takes, and says its own keys where that fails."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from containers.contracts.names import BASE_FOLDER
from tasks.config.sources import RewardModelSource
from tasks.pipeline.reward_models import known_reward_model, named_reward_model, probe_reward_model, reward_model_source
from tasks.sources.errors import HubUnreachableError, SourceError, SourceNotFoundError, UnusableSourceError
from tasks.sources.pinned import BranchMayHaveMovedError
from tests.unit.factories.weight_bytes import weight_bytes

MODEL = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": weight_bytes(b"weights" * 100),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.delenv("PREFECT_API_URL", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def adapter_files(base: str | None, revision: str | None = None) -> dict[str, bytes]:
    settings = {"peft_type": "LORA", "base_model_name_or_path": base, "revision": revision}
    return {
        "adapter_config.json": json.dumps(settings).encode(),
        "adapter_model.safetensors": weight_bytes(b"low rank"),
    }


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_an_adapter_is_put_onto_the_local_base_that_it_names(tmp_path: Path) -> None:
    base = write(tmp_path / "base", MODEL)
    adapter = write(tmp_path / "adapter", adapter_files(str(base)))
    found = named_reward_model(RewardModelSource(path=str(adapter)))
    assert (found.name, found.digest.startswith("sha256:")) == ("reward_model", True)
    assert (Path(found.path) / BASE_FOLDER / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    by_command = reward_model_source(str(adapter))
    assert by_command is not None and by_command.path == found.path


def test_an_adapter_is_put_onto_the_commit_that_it_names(tmp_path: Path, hub: FakeHub) -> None:
    old = hub.commit("models", "org/base", MODEL)
    hub.commit("models", "org/base", MODEL | {"model.safetensors": weight_bytes(b"newer")})
    adapter = write(tmp_path / "adapter", adapter_files("org/base", old))
    found = named_reward_model(RewardModelSource(path=str(adapter)))
    assert (Path(found.path) / BASE_FOLDER / "model.safetensors").read_bytes() == MODEL["model.safetensors"]


def test_an_adapter_on_the_hub_is_a_reward_model_too(hub: FakeHub) -> None:
    base = hub.commit("models", "org/base", MODEL)
    commit = hub.commit("models", "org/adapter", adapter_files("org/base", base))
    found = named_reward_model(RewardModelSource(hub_id="org/adapter", revision="main"))
    assert (Path(found.path) / "adapter_model.safetensors").read_bytes() == weight_bytes(b"low rank")
    assert named_reward_model(RewardModelSource(hub_id="org/adapter", revision=commit)) == found


def test_base_in_the_run_comes_before_the_one_that_the_adapter_names(tmp_path: Path) -> None:
    other = write(tmp_path / "other", MODEL | {"model.safetensors": weight_bytes(b"other")})
    adapter = write(tmp_path / "adapter", adapter_files("/gone/away"))
    found = named_reward_model(RewardModelSource(path=str(adapter), base=str(other)))
    assert (Path(found.path) / BASE_FOLDER / "model.safetensors").read_bytes() == weight_bytes(b"other")


@pytest.mark.parametrize("base", ["/gone/away", None, "train_sft 0123456789ab"])
def test_a_base_that_cannot_be_found_is_one_message_that_names_the_key(tmp_path: Path, base: str | None) -> None:
    source = RewardModelSource(path=str(write(tmp_path / "adapter", adapter_files(base))))
    for ask in (named_reward_model, known_reward_model):
        with pytest.raises(SourceNotFoundError, match=r"adapter .*reward_model\.base: FOLDER") as told:
            ask(source)
        assert "--base" not in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(SourceNotFoundError, match=r"reward_model\.base: FOLDER"):
        probe_reward_model(source, token=None)


def test_a_base_beside_a_whole_model_is_refused(tmp_path: Path) -> None:
    model = write(tmp_path / "model", MODEL)
    with pytest.raises(UnusableSourceError, match=r"^reward_model\.base names the base model of an adapter, and"):
        named_reward_model(RewardModelSource(path=str(model), base=str(model)))


def test_a_whole_model_is_taken_as_it_lies(tmp_path: Path, hub: FakeHub) -> None:
    commit = hub.commit("models", "org/model", MODEL)
    assert named_reward_model(RewardModelSource(hub_id="org/model", revision="main")).digest == f"hub:{commit}"
    local = named_reward_model(RewardModelSource(path=str(write(tmp_path / "model", MODEL))))
    assert local.path == str(tmp_path / "model")


def test_a_folder_that_is_not_there_is_named_with_its_key(tmp_path: Path) -> None:
    for ask in (named_reward_model, known_reward_model):
        with pytest.raises(SourceError, match=r"^reward_model\.path: .*gone does not exist"):
            ask(RewardModelSource(path=str(tmp_path / "gone")))


def test_looking_fetches_nothing_and_says_what_would_be_fetched(tmp_path: Path, hub: FakeHub) -> None:
    commit = hub.commit("models", "org/base", MODEL)
    size = sum(map(len, MODEL.values()))
    source = RewardModelSource(path=str(write(tmp_path / "adapter", adapter_files("org/base", commit))))
    probe = probe_reward_model(source, token=None)
    assert f"an adapter on org/base@{commit} ({size} bytes to fetch)" in probe.found
    assert (probe.missing_bytes, hub.downloads()) == (size, [])
    asked = len(hub.requests)
    assert f"org/base@{commit}" in probe_reward_model(source, token=None, ask_hub=False).found
    assert len(hub.requests) == asked
    named_reward_model(source)
    assert probe_reward_model(source, token=None).missing_bytes == 0


def test_what_is_known_without_the_hub_is_what_a_run_would_take(tmp_path: Path, hub: FakeHub) -> None:
    commit = hub.commit("models", "org/base", MODEL)
    pinned = RewardModelSource(path=str(write(tmp_path / "pinned", adapter_files("org/base", commit))))
    moving = RewardModelSource(path=str(write(tmp_path / "moving", adapter_files("org/base", "main"))))
    with pytest.raises(SourceNotFoundError, match="was not fetched yet"):
        known_reward_model(pinned)
    assert hub.requests == []
    taken = named_reward_model(pinned)
    asked = len(hub.requests)
    assert known_reward_model(pinned) == taken
    with pytest.raises(BranchMayHaveMovedError, match="`main` of org/base may have moved"):
        known_reward_model(moving)
    assert len(hub.requests) == asked


def test_an_adapter_on_the_hub_is_known_again_without_the_hub(hub: FakeHub) -> None:
    base = hub.commit("models", "org/base", MODEL)
    commit = hub.commit("models", "org/adapter", adapter_files("org/base", base))
    source = RewardModelSource(hub_id="org/adapter", revision=commit)
    taken = named_reward_model(source)
    hub.status = 503
    assert known_reward_model(source) == taken


def test_a_hub_that_does_not_answer_is_told_with_the_key_that_does_without(tmp_path: Path, hub: FakeHub) -> None:
    hub.status = 503
    with pytest.raises(HubUnreachableError, match=r"503.* name a folder on this disk with reward_model\."):
        named_reward_model(RewardModelSource(hub_id="org/model", revision="main"))
    adapter = write(tmp_path / "adapter", adapter_files("org/base", "main"))
    with pytest.raises(HubUnreachableError, match=r"^The adapter's base model: .*503.* with reward_model\.base\."):
        named_reward_model(RewardModelSource(path=str(adapter)))
