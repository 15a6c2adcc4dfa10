"""A challenger takes the champion's place for one reason only: it passed its gate and is better beyond chance."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from containers.contracts.champions import Comparison, Contest
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import StageName
from containers.contracts.records import GateDecision, GateRule, GateVerdict
from tasks import decide_champion
from tasks.champions.book import ChampionBook, ChampionMovedError, promoted_by_hand
from tasks.champions.record import Decision
from tasks.config.retrain import RetrainRules
from tasks.store.history import StageMemory
from tests.unit.factories.champion_factory import contest, make_book, record_of

PASSED = GateVerdict(name="reward_model", passed=True, rules=())
MISSED = GateVerdict(
    name="reward_model",
    passed=False,
    rules=(GateRule(name="accuracy", wanted="at least 60 %", found="55 %", passed=False),),
)
WAIVED = MISSED.model_copy(update={"waived_by": "Ada", "waiver_reason": "a trial"})
APPROVED = PASSED.model_copy(update={"decision": GateDecision(outcome="approved", by="Ada")})
REJECTED = PASSED.model_copy(update={"decision": GateDecision(outcome="rejected", by="Ada", reason="flattery")})

BETTER, EQUAL = contest(90, 40, both=300), contest(52, 48, both=300)
FALLS = contest(2, 40, both=100, name="safety", budget=0.02)


def of(*contests: Contest) -> Comparison:
    return Comparison(champion=1, challenger=2, contests=contests, confidence=0.95, alpha=0.05)


def decide(
    book: ChampionBook,
    monkeypatch: pytest.MonkeyPatch,
    *,
    verdict: GateVerdict = PASSED,
    compare: Callable[..., Comparison] = lambda *_, **__: of(BETTER),
    version: int = 2,
) -> Decision:
    """The decision on that version of the book, as the task of a retraining makes it."""
    made = next(item for item in book.read().versions if item.number == version)
    artifacts = {
        StageName.TRAIN_REWARD_MODEL: made.model,
        StageName.EVALUATE_REWARD_MODEL: made.certificate,
        StageName.FILTER_DATASET: made.pairs,
    }
    records = {
        stage: SimpleNamespace(key=item.key, digest=item.digest, metrics=()) for stage, item in artifacts.items()
    }
    run: Any = SimpleNamespace(
        gates=[verdict],
        run_id="run-2",
        mlflow_run_id="0" * 32,
        prefect_url="",
        history=SimpleNamespace(last=lambda stage: None),
        record_of=records.get,
        config=SimpleNamespace(run=SimpleNamespace(name="demo")),
    )
    monkeypatch.setattr(decide_champion, "compare_reward_models", compare)
    monkeypatch.setattr(decide_champion, "_show", lambda *_, **__: None)
    registry: Any = None
    return decide_champion.decide_on_reward_model.fn(
        run, book, RetrainRules(), EvaluateRewardModelConfig(), registry=registry, rules_text="the rules"
    )


@pytest.mark.parametrize(
    ("verdict", "contests", "kind", "champion"),
    [
        (PASSED, (BETTER,), "won", 2),
        (APPROVED, (BETTER,), "won", 2),
        (PASSED, (EQUAL,), "lost", 1),
        (PASSED, (BETTER, FALLS), "lost", 1),
        (MISSED, (BETTER,), "refused", 1),
        (WAIVED, (BETTER,), "refused", 1),
        (REJECTED, (BETTER,), "refused", 1),
    ],
    ids=["better", "better_and_approved", "chance", "falls_on_a_suite", "missed_its_gate", "waived", "rejected"],
)
def test_only_a_challenger_that_passed_and_is_better_beyond_chance_becomes_champion(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verdict: GateVerdict,
    contests: tuple[Contest, ...],
    kind: str,
    champion: int,
) -> None:
    book = make_book(tmp_path, num_versions=2, champions=(1,))
    decision = decide(book, monkeypatch, verdict=verdict, compare=lambda *_, **__: of(*contests))
    assert (decision.kind, decision.champion_before, decision.champion_after) == (kind, 1, champion)
    record = record_of(book)
    assert record.champion is not None
    assert record.champion.number == champion
    assert record.decisions[-1] == decision


def test_a_challenger_that_missed_its_gate_is_not_even_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*_: object, **__: object) -> Comparison:
        raise AssertionError("compared")

    decision = decide(make_book(tmp_path, champions=(1,)), monkeypatch, verdict=MISSED, compare=compare)
    assert "version 1 stays champion" in decision.text and "accuracy 55 %, wanted at least 60 %" in decision.text


def test_the_same_model_again_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = decide(make_book(tmp_path, champions=(1,)), monkeypatch, version=1)
    assert (decision.kind, decision.champion_after) == ("same", 1)


def test_a_champion_that_was_changed_during_the_comparison_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path, num_versions=3, champions=(1,))

    def compare(*_: object, **__: object) -> Comparison:
        book.update(lambda record: promoted_by_hand(record, 3, by="Ada", reason="meanwhile"))
        return of(BETTER)

    with pytest.raises(ChampionMovedError, match="changed while the challenger was compared"):
        decide(book, monkeypatch, compare=compare)
    record = record_of(book)
    assert record.champion is not None
    assert record.champion.number == 3


def test_a_version_keeps_the_requests_whose_results_its_run_used(tmp_path: Path) -> None:
    """A stage that was left out since has an older request, and one that was not run has none."""
    keys = {StageName.FILTER_DATASET: "a" * 64, StageName.TRAIN_SFT: "b" * 64, StageName.TRAIN_REWARD_MODEL: "c" * 64}
    memories = {stage: StageMemory(key="".join(key), identity={}) for stage, key in keys.items()}
    used = keys | {
        StageName.TRAIN_SFT: "0" * 64,
        StageName.EVALUATE_REWARD_MODEL: "d" * 64,
        StageName.TRAIN_POLICY: "e" * 64,
    }
    memories[StageName.TRAIN_POLICY] = StageMemory(key="e" * 64, identity={})  # after the judgement of a reward model
    run: Any = SimpleNamespace(
        history=SimpleNamespace(last=memories.get),
        record_of=lambda stage: (
            SimpleNamespace(key="".join([*used[stage]]), digest=f"of {stage}") if stage in used else None
        ),
    )
    asked = decide_champion._asked(run, make_book(tmp_path))
    assert {stage: item.digest for stage, item in asked.items()} == {
        stage: f"of {stage}" for stage in (StageName.FILTER_DATASET, StageName.TRAIN_REWARD_MODEL)
    }
