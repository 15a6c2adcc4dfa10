"""A schedule trains on what is new, knows when nothing is, and can be repeated by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub_server import FakeHub

from containers.contracts.identity import SINGLE_BATCH, identity_key, stage_identity, stage_profile
from containers.contracts.names import StageName
from tasks.champions.changes import why_retrain
from tasks.champions.record import Decision, RequestedStage
from tasks.champions.retraining import Retraining, load_retraining, run_config_path
from tasks.config.errors import ConfigError
from tasks.config.sources import whole_filter_config
from tasks.pipeline.inputs import filter_dataset_inputs, named_model_input
from tasks.run.runtime import code_identity
from tasks.sources.errors import SourceError
from tasks.store.history import stage_memory
from tests.unit.factories.run_files import write_run
from tests.unit.factories.weight_bytes import weight_bytes

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
    whole = whole_filter_config(config.filter_dataset, config.dataset, config.evaluate_reward_model.suites)
    identity = stage_identity(
        whole,
        seed=config.run.seed,
        inputs=inputs,
        code_digest=code_identity("process", image=config.image).program(whole).digest,
        profile=stage_profile(config.gpu_profile, StageName.FILTER_DATASET),
        batch=SINGLE_BATCH,
    )
    memory = stage_memory(identity, key=identity_key(identity), inputs=inputs)
    decision = Decision(
        at="2026-01-01T00:00:00+00:00",
        kind="refused",
        text="nothing was compared",
        asked={StageName.FILTER_DATASET: RequestedStage(memory=memory, digest="sha256:0")},
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


def mixed_run(folder: Path, revisions: dict[str, str], *, local: bool = False) -> str:
    sources: list[dict[str, object]] = [
        {"name": name, "hub_id": f"org/{name}", "revision": revision, "train": "train.jsonl", "weight": 2}
        for name, revision in revisions.items()
    ]
    if local:
        (folder / "own.jsonl").write_bytes(PAIR)
        sources.append({"name": "own", "train": str(folder / "own.jsonl"), "weight": 1})
    return str(write_run(folder, dataset={"mixture": sources}, runtime={"kind": "process"}))


def test_branches_inside_a_mixture_are_pinned_and_the_rest_of_it_stays(hub: FakeHub, tmp_path: Path) -> None:
    soups = hub.commit("datasets", "org/soups", {"train.jsonl": PAIR})
    breads = hub.commit("datasets", "org/breads", {"train.jsonl": PAIR * 3}, branch="weekly")
    path = mixed_run(tmp_path, {"soups": soups, "breads": "weekly"}, local=True)
    retraining = load_retraining(path)
    dataset = retraining.config.dataset
    assert [source.revision for source in dataset.mixture] == [soups, breads, None]
    assert [(source.name, source.weight) for source in dataset.mixture] == [("soups", 2), ("breads", 2), ("own", 1)]
    assert breads in retraining.loaded.yaml_text
    assert retraining.never_new == ""
    # A run that begins now works on these commits, wherever the branch goes meanwhile.
    hub.commit("datasets", "org/breads", {"train.jsonl": PAIR}, branch="weekly")
    inputs = filter_dataset_inputs(retraining.config.filter_dataset, dataset, None)
    assert {item.name: item.digest for item in inputs if item.digest.startswith("hub:")} == {
        "train_data_soups": f"hub:{soups}:train.jsonl",
        "train_data_breads": f"hub:{breads}:train.jsonl",
    }


def test_a_new_commit_of_one_source_of_a_mixture_is_news_that_names_the_source(hub: FakeHub, tmp_path: Path) -> None:
    hub.commit("datasets", "org/soups", {"train.jsonl": PAIR})
    hub.commit("datasets", "org/breads", {"train.jsonl": PAIR})
    path = mixed_run(tmp_path, {"soups": "main", "breads": "main"})
    decided(load_retraining(path))
    assert not why_retrain(load_retraining(path)).startswith("filter_dataset")
    newer = hub.commit("datasets", "org/breads", {"train.jsonl": PAIR * 2})
    why = why_retrain(load_retraining(path))
    assert why.startswith("filter_dataset: its input train_data_breads changed") and newer in why


def test_a_mixture_of_commits_is_said_to_never_bring_anything_new_unless_a_file_is_local(
    hub: FakeHub, tmp_path: Path
) -> None:
    pinned = {name: hub.commit("datasets", f"org/{name}", {"train.jsonl": PAIR}) for name in ("soups", "breads")}
    said = load_retraining(mixed_run(tmp_path, pinned)).never_new
    assert "(soups, breads) names a commit" in said and "name a branch" in said
    assert load_retraining(mixed_run(tmp_path, pinned, local=True)).never_new == ""


def test_a_branch_of_a_mixture_that_has_gone_is_named(hub: FakeHub, tmp_path: Path) -> None:
    commit = hub.commit("datasets", "org/soups", {"train.jsonl": PAIR})
    hub.commit("datasets", "org/breads", {"train.jsonl": PAIR})
    with pytest.raises(SourceError, match="weekly"):
        load_retraining(mixed_run(tmp_path, {"soups": commit, "breads": "weekly"}))


def test_an_unknown_run_is_refused_with_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/runs").mkdir(parents=True)
    (tmp_path / "configs/runs/demo.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert run_config_path("demo") == Path("configs/runs/demo.yaml")
    with pytest.raises(ConfigError, match=r"`dmo`: there is no run of that name\. Did you mean `demo`\?"):
        run_config_path("dmo")


MODEL = {
    "config.json": b"{}",
    "model.safetensors": weight_bytes(b"weights"),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{}",
}


def run_on_models(folder: Path, revision: str) -> str:
    (folder / "train.jsonl").write_bytes(PAIR)
    (folder / "validation.jsonl").write_bytes(PAIR)
    reference = {"hub_id": "org/judge", "revision": revision}
    return str(
        write_run(
            folder,
            build_base_model=None,
            base_model={"hub_id": "org/base", "revision": revision},
            filter_dataset={"polarity": {"reference_reward_model": reference}},
            runtime={"kind": "process"},
        )
    )


def starts_from(retraining: Retraining) -> tuple[str, ...]:
    """Digests of what the pairs and the reward model are made from, as the keys of their stages hold them."""
    config = retraining.config
    assert config.base_model is not None
    data = filter_dataset_inputs(config.filter_dataset, config.dataset, config.base_model)
    return (*(item.digest for item in data), named_model_input(config.base_model).digest)


def test_branches_of_models_are_pinned_to_their_commits(hub: FakeHub, tmp_path: Path) -> None:
    base, judge = (hub.commit("models", name, MODEL) for name in ("org/base", "org/judge"))
    config = load_retraining(run_on_models(tmp_path, "main")).config
    reference = config.filter_dataset.polarity.reference_reward_model
    assert config.base_model is not None and reference is not None
    assert (config.base_model.revision, reference.revision) == (base, judge)
    asked = len(hub.requests)
    pinned = load_retraining(run_on_models(tmp_path, base)).config
    assert pinned.base_model is not None and pinned.base_model.revision == base
    assert len(hub.requests) == asked


@pytest.mark.parametrize("name", ["org/base", "org/judge"])
def test_a_model_whose_branch_moved_is_another_stage_key_and_so_news(hub: FakeHub, tmp_path: Path, name: str) -> None:
    for model in ("org/base", "org/judge"):
        hub.commit("models", model, MODEL)
    path = run_on_models(tmp_path, "main")
    before = load_retraining(path)
    decided(before)
    assert not why_retrain(before).startswith("filter_dataset")
    newer = hub.commit("models", name, MODEL | {"model.safetensors": weight_bytes(b"more weights")})
    # A retraining that began before the branch moved goes on with the model that it had.
    assert newer not in before.loaded.yaml_text
    after = load_retraining(path)
    assert newer in after.loaded.yaml_text
    assert starts_from(before) != starts_from(after)
    if name == "org/judge":
        assert why_retrain(after).startswith("filter_dataset: its input reference_reward_model changed")


def test_a_branch_of_a_model_that_has_gone_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.commit("models", "org/base", MODEL)
    hub.commit("models", "org/judge", MODEL)
    with pytest.raises(SourceError, match="org/base@weekly"):
        load_retraining(run_on_models(tmp_path, "weekly"))
