"""A challenger takes the champion's place for one reason only: it passed its gate and is better beyond chance."""

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.champions import Comparison, Contest
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.names import FROZEN_PAIRS_FILE, TEST_PAIRS_FILE, TRAIN_PAIRS_FILE, TUNE_PAIRS_FILE, StageName
from containers.contracts.records import GateDecision, GateRule, GateVerdict
from containers.data.rows import prompt_identity
from tasks import decide_champion
from tasks.champions.book import ChampionBook, ChampionMovedError, promoted_by_hand
from tasks.champions.comparison import _frozen_notes
from tasks.champions.record import Decision
from tasks.config.retrain import RetrainRules
from tasks.store.history import StageMemory
from tests.unit.factories.champion_factory import contest, make_book, publish, record_of

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
    new: Any = None,
    gates: tuple[GateVerdict, ...] = (),
    said: list[str] | None = None,
    tags: dict[str, str] | None = None,
    filters: FilterDatasetConfig | None = None,
) -> Decision:
    """The decision on that version of the book, or on a new model, as the task of a retraining makes it."""
    made = new or next(item for item in book.read().versions if item.number == version)
    artifacts = {
        StageName.TRAIN_REWARD_MODEL: made.model,
        StageName.EVALUATE_REWARD_MODEL: made.certificate,
        StageName.FILTER_DATASET: made.pairs,
    }
    records = {
        stage: SimpleNamespace(key=item.key, digest=item.digest, metrics=()) for stage, item in artifacts.items()
    }
    run: Any = SimpleNamespace(
        gates=[*gates, verdict],
        run_id="run-2",
        mlflow_run_id="0" * 32,
        prefect_url="",
        history=SimpleNamespace(last=lambda stage: None),
        record_of=records.get,
        config=SimpleNamespace(
            run=SimpleNamespace(name="demo"), filter_dataset=filters or FilterDatasetConfig(), train_sft=None
        ),
    )
    monkeypatch.setattr(decide_champion, "compare_reward_models", compare)
    # What a person sees: the terminal and the MLflow run; Prefect and the report have tests of their own.
    lines: list[str] = [] if said is None else said
    shown: dict[str, str] = {} if tags is None else tags
    run.tracking = SimpleNamespace(set_tags=lambda _, new: shown.update(new), log_text=lambda *_: None)
    monkeypatch.setattr(decide_champion, "current_display", lambda: SimpleNamespace(say=lines.append))
    for name in ("keep_decision", "show_blocks"):
        monkeypatch.setattr(decide_champion, name, lambda *_, **__: None)
    registry: Any = SimpleNamespace(reconcile=lambda *_: "" if said is None else "MLflow is away")
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


def new_model(
    store: Path,
    *,
    train: tuple[str, ...] = ("a",),
    frozen: tuple[str, ...] = ("c", "d"),
    tune: tuple[str, ...] = ("b",),
    test: tuple[str, ...] = (),
) -> Any:
    """A model that the book does not know, whose prompts are these."""

    def rows(*prompts: str) -> bytes:
        found = [{"pair_id": text, "prompt": [{"role": "user", "content": text}]} for text in prompts]
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(found), file)
        return file.getvalue()

    files = {TRAIN_PAIRS_FILE: rows(*train), TUNE_PAIRS_FILE: rows(*tune), FROZEN_PAIRS_FILE: rows(*frozen)}
    files |= {TEST_PAIRS_FILE: rows(*test)} if test else {}
    return SimpleNamespace(
        model=publish(store, StageName.TRAIN_REWARD_MODEL, "a new model"),
        certificate=publish(store, StageName.EVALUATE_REWARD_MODEL, "a new certificate"),
        pairs=publish(store, StageName.FILTER_DATASET, "new pairs", files),
    )


def letters(book: ChampionBook, version: int) -> set[str]:
    names = {prompt_identity([{"role": "user", "content": letter}]): letter for letter in "abcd"}
    return {names[item] for item in book.training_prompts(version)}


def test_the_first_that_passes_is_champion_and_its_frozen_pairs_judge_every_later_challenger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*_: object, **__: object) -> Comparison:
        raise AssertionError("compared with nothing")

    book = make_book(tmp_path, num_versions=0, champions=())
    decision = decide(book, monkeypatch, new=new_model(tmp_path, frozen=("c", "d", "c")), compare=compare)
    assert (decision.kind, decision.champion_before, decision.champion_after, decision.version) == ("first", None, 1, 1)
    assert "What is frozen of its data (3 pairs of 2 prompts) judges every later challenger." in decision.text
    record = record_of(book)
    assert record.champion is not None and record.champion.number == 1
    assert record.frozen is not None
    assert (record.frozen.count, record.frozen.from_version, record.frozen.was_chosen_on) == (3, 1, False)
    assert letters(book, 1) == {"a", "b"}, "the pairs that chose its checkpoint were seen as well"


@pytest.mark.parametrize("choice", ["drop", "report", "off"])
def test_a_frozen_prompt_like_a_training_prompt_was_seen_whatever_the_filter_does_with_such_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    book = make_book(tmp_path, num_versions=0, champions=())
    model = new_model(
        tmp_path, train=("How do I learn to rollerblade?",), frozen=("how do I learn to roller-blade", "c")
    )
    decide(book, monkeypatch, new=model, filters=FilterDatasetConfig.model_validate({"similar_prompts": choice}))
    like, other = (
        prompt_identity([{"role": "user", "content": text}]) for text in ("how do I learn to roller-blade", "c")
    )
    assert like in book.training_prompts(1) and other not in book.training_prompts(1)


def test_frozen_pairs_that_also_chose_the_checkpoint_are_no_reason_to_leave_all_of_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path, num_versions=0, champions=())
    decide(book, monkeypatch, new=new_model(tmp_path, frozen=("b", "c"), tune=("b", "c")))
    record = record_of(book)
    assert record.frozen is not None and record.frozen.was_chosen_on
    assert letters(book, 1) == {"a"}


def test_frozen_pairs_that_also_certified_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = make_book(tmp_path, num_versions=0, champions=())
    decide(book, monkeypatch, new=new_model(tmp_path, frozen=("c", "d"), test=("c", "d")))
    record = record_of(book)
    assert record.frozen is not None and record.frozen.was_certified_on and not record.frozen.was_chosen_on
    (note,) = _frozen_notes(record)
    assert "The certificate of version 1 is of the frozen pairs, too" in note


def test_a_new_challenger_gets_the_next_number_and_the_first_champions_frozen_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path, num_versions=0, champions=())
    decide(book, monkeypatch, new=new_model(tmp_path))
    frozen = record_of(book).frozen
    other = new_model(tmp_path, frozen=("d",))
    other.model = publish(tmp_path, StageName.TRAIN_REWARD_MODEL, "another model")
    decision = decide(book, monkeypatch, new=other)
    assert (decision.kind, decision.version, decision.champion_after) == ("won", 2, 2)
    record = record_of(book)
    assert [item.number for item in record.versions] == [1, 2]
    assert record.frozen == frozen


def test_a_challenger_that_wins_by_its_own_teachers_scores_waits_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught = of(BETTER).model_copy(update={"judged_by_teacher": True})
    decision = decide(make_book(tmp_path, champions=(1,)), monkeypatch, compare=lambda *_, **__: taught)
    assert (decision.kind, decision.champion_after) == ("held", 1)


def test_a_closed_gate_says_whether_there_is_a_champion_and_that_a_waiver_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none_yet = decide(make_book(tmp_path, champions=()), monkeypatch, verdict=WAIVED)
    assert none_yet.text.startswith("there is still no champion: the challenger was not compared")
    assert none_yet.text.endswith("A waiver lets a run go on; it makes no champion.")
    rejected = decide(make_book(tmp_path / "other", champions=(1,)), monkeypatch, verdict=REJECTED)
    assert rejected.text == (
        "version 1 stays champion: the challenger was not compared, since its gate was rejected by Ada."
    )


def test_a_decision_is_said_with_every_further_contest_and_with_what_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    tags: dict[str, str] = {}
    contests = of(
        BETTER, contest(50, 48, both=100, name="safety", budget=0.02), contest(9, 8, name="facts", budget=0.9)
    )
    book = make_book(tmp_path, champions=(1,))
    decision = decide(book, monkeypatch, compare=lambda *_, **__: contests, said=said, tags=tags)
    assert decision.text in said[0]
    assert ["safety" in said[1], "facts" in said[2]] == [True, True]
    assert said[3:] == ["MLflow is away"]
    assert tags == {
        "rlhf.reward_model.kind": "won",
        "rlhf.reward_model.reason": decision.text,
        "rlhf.reward_model.champion": "version 2",
    }


def test_without_a_comparison_there_is_one_line_and_no_champion_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    tags: dict[str, str] = {}
    decide(make_book(tmp_path, champions=()), monkeypatch, verdict=MISSED, said=said, tags=tags)
    assert len(said) == 2
    assert tags["rlhf.reward_model.champion"] == "none"


@pytest.mark.parametrize(
    ("gates", "verdict", "kind"),
    [
        ((MISSED,), PASSED, "won"),
        ((PASSED,), MISSED, "refused"),
        ((PASSED, MISSED.model_copy(update={"name": "policy"})), PASSED, "won"),
    ],
    ids=["passed at last", "missed at last", "another model's gate"],
)
def test_the_last_verdict_on_this_model_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gates: tuple[GateVerdict, ...],
    verdict: GateVerdict,
    kind: str,
) -> None:
    book = make_book(tmp_path, champions=(1,))
    assert decide(book, monkeypatch, gates=gates, verdict=verdict).kind == kind


def test_a_later_verdict_on_the_policy_says_nothing_about_the_reward_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path, champions=(1,))
    policy = PASSED.model_copy(update={"name": "policy"})
    assert decide(book, monkeypatch, gates=(MISSED,), verdict=policy).kind == "refused"
