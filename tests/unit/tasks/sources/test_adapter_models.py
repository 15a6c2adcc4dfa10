"""An adapter is put together with its base model wherever that lies, or the person is told what is missing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from containers.contracts.names import BASE_FOLDER
from tasks.pipeline.inputs import named_model_input
from tasks.pipeline.reward_models import reward_model_source
from tasks.sources.errors import SourceError, SourceNotFoundError, UnusableSourceError
from tasks.sources.hub import hub_cache
from tasks.sources.model_files import require_model_files
from tests.unit.factories.weight_bytes import weight_bytes

BASE = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": weight_bytes(b"weights" * 100),
    "tokenizer.json": b'{"of": "base"}',
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
    "chat_template.jinja": b"{{ messages }} of the base",
}
ADAPTER_WEIGHTS = {"adapter_model.safetensors": weight_bytes(b"low rank")}
OWN_TOKENIZER = {
    "tokenizer.json": b'{"of": "adapter"}',
    "tokenizer_config.json": b'{"chat_template": "{{ messages }} of the adapter"}',
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


def _settings(base: str | None, **changes: object) -> dict[str, bytes]:
    value = {"peft_type": "LORA", "base_model_name_or_path": base, "revision": None, **changes}
    return {"adapter_config.json": json.dumps(value).encode(), **ADAPTER_WEIGHTS}


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _together(model: Path | str, base: str | None = None) -> Path:
    source = reward_model_source(str(model), base=base)
    assert source is not None and source.path is not None
    return Path(source.path)


def test_adapter_and_base_become_one_folder_that_every_stage_takes_for_a_model(tmp_path: Path) -> None:
    base = _write(tmp_path / "base", BASE)
    folder = _together(_write(tmp_path / "adapter", _settings(str(base))))
    assert (folder / BASE_FOLDER / "model.safetensors").read_bytes() == BASE["model.safetensors"]
    assert (folder / "adapter_model.safetensors").read_bytes() == weight_bytes(b"low rank")
    assert not (folder / "model.safetensors").exists()
    assert (folder / "tokenizer.json").read_bytes() == BASE["tokenizer.json"]
    require_model_files([path.name for path in folder.iterdir()], lambda name: (folder / name).read_text(), where="it")
    found = named_model_input(reward_model_source(str(tmp_path / "adapter")), name="reward_model")  # type: ignore[arg-type]
    assert (found.path, found.digest.startswith("sha256:")) == (str(folder), True)


def test_it_is_made_once_and_anew_when_a_file_changes(tmp_path: Path) -> None:
    base = _write(tmp_path / "base", BASE)
    adapter = _write(tmp_path / "adapter", _settings(str(base)))
    first = _together(adapter)
    assert _together(adapter) == first
    (base / "model.safetensors").unlink()
    (base / "model.safetensors").write_bytes(weight_bytes(b"other weights"))
    second = _together(adapter)
    assert second != first
    assert (second / BASE_FOLDER / "model.safetensors").read_bytes() == weight_bytes(b"other weights")
    assert (first / BASE_FOLDER / "model.safetensors").read_bytes() == BASE["model.safetensors"]
    assert len(list((hub_cache().parent / "rlhf-snapshots" / "adapters").iterdir())) == 2


def test_the_adapters_own_tokenizer_keeps_its_own_template(tmp_path: Path) -> None:
    """A chat_template.jinja beside it would be read in the place of the template in its configuration."""
    base = _write(tmp_path / "base", BASE)
    folder = _together(_write(tmp_path / "adapter", _settings(str(base)) | OWN_TOKENIZER))
    assert (folder / "tokenizer.json").read_bytes() == OWN_TOKENIZER["tokenizer.json"]
    assert (folder / "tokenizer_config.json").read_bytes() == OWN_TOKENIZER["tokenizer_config.json"]
    assert not (folder / "chat_template.jinja").exists()


def test_the_base_is_found_beside_the_adapter_and_where_another_stage_made_it(tmp_path: Path) -> None:
    _write(tmp_path / "models" / "base", BASE)
    beside = _write(tmp_path / "models" / "adapter", _settings("base"))
    assert (_together(beside) / BASE_FOLDER / "config.json").is_file()
    store = tmp_path / "store" / "artifacts"
    _write(store / "train_sft" / f"{'a' * 12}{'b' * 52}" / "model", BASE)
    made = _write(store / "train_reward_model" / ("c" * 64) / "adapter", _settings(f"train_sft {'a' * 12}"))
    link = tmp_path / "outputs" / "train_reward_model"
    link.parent.mkdir()
    link.symlink_to(made.parent)
    assert (_together(link / "adapter") / BASE_FOLDER / "config.json").is_file()


def test_the_base_is_fetched_from_the_hub_at_the_revision_that_the_adapter_names(tmp_path: Path, hub: FakeHub) -> None:
    old = hub.commit("models", "org/base", BASE)
    hub.commit(
        "models", "org/base", BASE | {"model.safetensors": weight_bytes(b"newer"), "pytorch_model.bin": b"pickle"}
    )
    pinned = _together(_write(tmp_path / "pinned", _settings("org/base", revision=old)))
    assert (pinned / BASE_FOLDER / "model.safetensors").read_bytes() == BASE["model.safetensors"]
    moving = _together(_write(tmp_path / "moving", _settings("org/base")))
    assert (moving / BASE_FOLDER / "model.safetensors").read_bytes() == weight_bytes(b"newer")
    assert not (moving / BASE_FOLDER / "pytorch_model.bin").exists()


def test_an_adapter_on_the_hub_is_fetched_with_its_base(hub: FakeHub) -> None:
    base = hub.commit("models", "org/base", BASE)
    never = {"optimizer.pt": b"pickle", "README.md": b"hello"}
    commit = hub.commit("models", "org/adapter", _settings("org/base", revision=base) | never)
    folder = _together(f"org/adapter@{commit}")
    assert (folder / "adapter_model.safetensors").read_bytes() == weight_bytes(b"low rank")
    assert (folder / BASE_FOLDER / "config.json").is_file()
    assert not set(never) & {path.name for path in folder.iterdir()}
    hub.status = 503
    assert _together(f"org/adapter@{commit}") == folder  # commits that are here need no hub


def test_a_base_that_is_said_comes_before_the_one_that_is_named(tmp_path: Path, hub: FakeHub) -> None:
    commit = hub.commit("models", "org/base", BASE)
    other = _write(tmp_path / "other", BASE | {"model.safetensors": weight_bytes(b"other")})
    adapter = _write(tmp_path / "adapter", _settings("/gone/with/the/machine"))
    assert (_together(adapter, str(other)) / BASE_FOLDER / "model.safetensors").read_bytes() == weight_bytes(b"other")
    folder = _together(adapter, f"org/base@{commit}")
    assert (folder / BASE_FOLDER / "model.safetensors").read_bytes() == BASE["model.safetensors"]


@pytest.mark.parametrize(
    ("settings", "problem", "kind"),
    [
        (
            _settings("/gone/away"),
            r"base model of the adapter .* is not there: /gone/away\. .*--base",
            SourceNotFoundError,
        ),
        (_settings("somewhere"), r"is not there: somewhere", SourceNotFoundError),
        (_settings("train_sft 0123456789ab"), r"is not there: train_sft 0123456789ab", SourceNotFoundError),
        (_settings(None), r"names no base model .*--base", SourceNotFoundError),
        (_settings(""), r"names no base model .*--base", SourceNotFoundError),
        (_settings("org/none"), r"adapter's base model: .*org/none@main .*--base", SourceNotFoundError),
        (_settings("base", peft_type="IA3"), r"of the kind IA3, and only LoRA", UnusableSourceError),
        ({"adapter_config.json": b"{", **ADAPTER_WEIGHTS}, r"cannot be read", UnusableSourceError),
        ({"adapter_config.json": b"[]", **ADAPTER_WEIGHTS}, r"of the kind None", UnusableSourceError),
        (
            {"adapter_config.json": _settings("base")["adapter_config.json"], "adapter_model.bin": b"pickle"},
            r"no adapter_model\.safetensors: .* runs code",
            UnusableSourceError,
        ),
    ],
)
def test_what_cannot_be_put_together_is_told_before_anything_starts(
    tmp_path: Path, settings: dict[str, bytes], problem: str, kind: type[SourceError]
) -> None:
    adapter = _write(tmp_path / "adapter", settings)
    with pytest.raises(kind, match=problem):
        reward_model_source(str(adapter))


@pytest.mark.parametrize("lacks", ["config.json", "model.safetensors"])
def test_a_base_without_weights_or_configuration_is_no_base(tmp_path: Path, lacks: str) -> None:
    base = _write(tmp_path / "base", {name: data for name, data in BASE.items() if name != lacks})
    adapter = _write(tmp_path / "adapter", _settings(str(base)))
    wanted = "no config.json" if lacks == "config.json" else "no weights as safetensors"
    with pytest.raises(UnusableSourceError, match=f"The base model .* {wanted}"):
        reward_model_source(str(adapter))


def test_a_base_that_is_named_in_neither_way_is_told_with_both(tmp_path: Path) -> None:
    adapter = _write(tmp_path / "adapter", _settings("base"))
    with pytest.raises(SourceNotFoundError, match=r"--base: `nowhere` is no folder here, .*org/name@revision"):
        reward_model_source(str(adapter), base="nowhere")


def test_a_base_beside_a_whole_model_is_refused(tmp_path: Path, hub: FakeHub) -> None:
    model = _write(tmp_path / "model", BASE)
    commit = hub.commit("models", "org/model", BASE)
    for name in (str(model), f"org/model@{commit}"):
        with pytest.raises(UnusableSourceError, match="--base names the base model of an adapter"):
            reward_model_source(name, base=str(model))


def test_what_a_training_left_is_found_in_its_artifact_and_in_its_runs_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    merged = _write(run / "artifacts" / "train_reward_model" / "merged", BASE)
    for place in (run, run / "artifacts" / "train_reward_model", merged):
        source = reward_model_source(str(place))
        assert source is not None
        assert source.path == str(merged)


def test_an_answer_of_the_hub_that_never_came_is_told(hub: FakeHub) -> None:
    hub.status = 503
    with pytest.raises(SourceError, match="org/model"):
        reward_model_source("org/model@main")
