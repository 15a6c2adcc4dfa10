"""A run may be judged by, and train against, a reward model that was saved as an adapter: every look at it agrees."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from containers.contracts.names import StageName
from flows.cli.run import run_pipeline
from tasks.check_system import run_checks
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.pipeline.lookup import look_up_stages
from tasks.plan.run_plan import draft_plan
from tests.unit.factories.run_files import write_run
from tests.unit.factories.weight_bytes import weight_bytes

MODEL = {
    "config.json": b"{}",
    "model.safetensors": weight_bytes(b"weights"),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{}",
}
PAIRS = "".join(f'{{"prompt": "{number} + 2?", "chosen": "{number + 2}", "rejected": "no"}}\n' for number in range(400))


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def write_model(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def adapter(folder: Path, *, base: str, revision: str | None = None) -> Path:
    settings = {"peft_type": "LORA", "base_model_name_or_path": base, "revision": revision}
    files = {
        "adapter_config.json": json.dumps(settings).encode(),
        "adapter_model.safetensors": weight_bytes(b"low rank"),
    }
    return write_model(folder, files)


def run_with(folder: Path, reward_model: dict[str, str]) -> RunConfig:
    for name in ("train.jsonl", "validation.jsonl"):
        (folder / name).write_text(PAIRS)
    path = write_run(folder, reward_model=reward_model, runtime={"kind": "process"})
    return load_run_config(path, overrides=["run.until=evaluate_reward_model"]).config


def found_by_check(config: RunConfig) -> tuple[str, str]:
    rows = run_checks(config, draft_plan(config))
    ((verdict, found),) = [(row.verdict, row.found) for row in rows if row.name == "reward model"]
    return verdict, found


def test_an_adapter_passes_the_check_and_the_plan_knows_what_it_would_be_judged_as(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", MODEL)
    config = run_with(tmp_path, {"path": str(adapter(tmp_path / "adapter", base=str(base)))})
    verdict, found = found_by_check(config)
    assert (verdict, f"an adapter on {base}" in found) == ("ok", True)
    assert look_up_stages(config).texts[StageName.EVALUATE_REWARD_MODEL].startswith("runs")


def test_a_base_that_is_gone_is_told_by_check_plan_and_run_with_the_key_that_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_with(tmp_path, {"path": str(adapter(tmp_path / "adapter", base="/gone/away"))})
    assert found_by_check(config)[0] == "failure"
    loaded = load_run_config(tmp_path / "run.yaml")
    assert run_pipeline(loaded, command="rlhf run") == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "is not there: /gone/away. Say where it is with reward_model.base: FOLDER" in told
    base = write_model(tmp_path / "base", MODEL)
    mended = run_with(tmp_path, {"path": str(tmp_path / "adapter"), "base": str(base)})
    assert found_by_check(mended)[0] == "ok"


def test_a_base_on_the_hub_is_asked_for_by_the_check_and_by_nobody_before(tmp_path: Path, hub: FakeHub) -> None:
    commit = hub.commit("models", "org/base", MODEL)
    config = run_with(tmp_path, {"path": str(adapter(tmp_path / "adapter", base="org/base", revision=commit))})
    look_up_stages(config)
    assert hub.requests == []
    verdict, found = found_by_check(config)
    assert (verdict, f"an adapter on org/base@{commit}" in found) == ("ok", True)
    assert hub.downloads() == []


def test_base_is_a_key_of_reward_model_and_of_no_other_model(tmp_path: Path) -> None:
    path = write_run(tmp_path, build_base_model=None, base_model={"path": "model", "base": "other"})
    with pytest.raises(InvalidConfigError, match=r"base_model\.base: unknown key"):
        load_run_config(path)
