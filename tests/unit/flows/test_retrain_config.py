"""A schedule trains on what is new, knows when nothing is, and can be repeated by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub
from run_files import write_run

from containers.contracts.names import StageName
from flows.config_errors import ConfigError
from flows.retrain_changes import why_retrain
from flows.retrain_config import Retraining, load_retraining, run_config_path
from tasks.champion_record import AskedStage, Decision
from tasks.code_identity import code_identity
from tasks.source_errors import SourceError
from tasks.stage_history import stage_memory
from tasks.stage_inputs import filter_dataset_inputs
from tasks.stage_key import SINGLE_BATCH, identity_key, stage_identity, stage_profile

PAIR = b'{"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}\n'


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def run_from_hub(folder: Path, revision: str) -> str:
    dataset = {"hub_id": "org/pairs", "revision": revision, "train": "train.jsonl"}
    return str(write_run(folder, dataset=dataset, runtime={"kind": "process"}))


def decided(retraining: Retraining) -> None:
    """A decision on a challenger that was filtered from what the dataset is now; the other stages are not in it."""
    config = retraining.config
    inputs = filter_dataset_inputs(config.filter_dataset, config.dataset, config.base_model)
    identity = stage_identity(
        config.filter_dataset,
        seed=config.run.seed,
        inputs=inputs,
        code_digest=code_identity("process", image=config.image).digest,
        profile=stage_profile(config.gpu_profile, StageName.FILTER_DATASET),
        batch=SINGLE_BATCH,
    )
    memory = stage_memory(identity, key=identity_key(identity), inputs=inputs)
    decision = Decision(
        at="2026-01-01T00:00:00+00:00",
        kind="refused",
        text="nothing was compared",
        asked={StageName.FILTER_DATASET: AskedStage(memory=memory, digest="sha256:0")},
        rules=retraining.rules_text("reward_model"),
    )
    book = retraining.book("reward_model")
    book.update(lambda record: record.model_copy(update={"decisions": (*record.decisions, decision)}))


def test_a_branch_is_pinned_to_its_commit_and_the_command_repeats_the_retraining(hub: FakeHub, tmp_path: Path) -> None:
    commit = hub.commit("datasets", "org/pairs", {"train.jsonl": PAIR})
    retraining = load_retraining(run_from_hub(tmp_path, "main"), ["run.seed=7"])
    assert retraining.config.dataset.revision == commit
    assert commit in retraining.loaded.yaml_text
    assert retraining.config.run.until is StageName.EVALUATE_REWARD_MODEL
    assert retraining.command == f"rlhf retrain -c {tmp_path}/run.yaml --set run.seed=7"
    assert retraining.never_new == ""


def test_a_new_commit_on_the_branch_is_news_and_the_same_one_is_not(hub: FakeHub, tmp_path: Path) -> None:
    hub.commit("datasets", "org/pairs", {"train.jsonl": PAIR})
    path = run_from_hub(tmp_path, "main")
    assert why_retrain(load_retraining(path)) == "nothing was decided yet"
    decided(load_retraining(path))
    assert not why_retrain(load_retraining(path)).startswith("filter_dataset")
    newer = hub.commit("datasets", "org/pairs", {"train.jsonl": PAIR * 2})
    why = why_retrain(load_retraining(path))
    assert why.startswith("filter_dataset: its input train_data changed") and newer in why


def test_other_demands_ask_for_another_decision(hub: FakeHub, tmp_path: Path) -> None:
    hub.commit("datasets", "org/pairs", {"train.jsonl": PAIR})
    path = run_from_hub(tmp_path, "main")
    decided(load_retraining(path))
    for change in ("gates.reward_model.minimum_accuracy=0.9", "retrain.regression_budget=0.5"):
        assert why_retrain(load_retraining(path, [change])) == "the gate or the demands on a challenger changed"


def test_a_pinned_commit_is_said_to_never_bring_anything_new(hub: FakeHub, tmp_path: Path) -> None:
    commit = hub.commit("datasets", "org/pairs", {"train.jsonl": PAIR})
    assert "name a branch" in load_retraining(run_from_hub(tmp_path, commit)).never_new


def test_a_branch_that_has_gone_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.commit("datasets", "org/pairs", {"train.jsonl": PAIR})
    with pytest.raises(SourceError, match="weekly"):
        load_retraining(run_from_hub(tmp_path, "weekly"))


def test_an_unknown_run_is_refused_with_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/runs").mkdir(parents=True)
    (tmp_path / "configs/runs/demo.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert run_config_path("demo") == Path("configs/runs/demo.yaml")
    with pytest.raises(ConfigError, match=r"`dmo`: there is no run of that name\. Did you mean `demo`\?"):
        run_config_path("dmo")
