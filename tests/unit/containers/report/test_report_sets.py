"""What the report says of standard sets: all models beside each other, what was lost, and what tells nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures
from containers.document.markdown import markdown
from containers.evals.sets.figures import ItemValues, model_differences, model_scores, set_parts
from containers.evals.sets.records import SetModel, SetResult, SetSample, SetsEvaluation
from containers.report.inputs import load_report_inputs
from containers.report.policy.sets import losing_sets, points_text, sets_blocks, worst_change
from containers.report.verdict import headline_cards, run_verdict
from tests.unit.factories.report.report_factory import make_run

MODELS: tuple[SetModel, ...] = ("before", "start", "policy")


def result(name: str, *, policy: float, count: int = 200, **changes: Any) -> SetResult:
    """A set on which the start model is right in a half, and the policy in another share."""
    shares = {"before": 0.2, "start": 0.5, "policy": policy}
    items = [
        ItemValues(
            item_id=f"{place}",
            prompt_id=f"{place}",
            subset="hard" if place % 3 else "easy",
            values={model: (float(place < round(count * shares[model])),) for model in MODELS},
            ended=dict.fromkeys(MODELS, (True,)),
        )
        for place in range(count)
    ]
    found = SetResult(
        name=name,
        kind="math",
        title="Questions",
        measure="right answers",
        source="a paper",
        origin="set.jsonl",
        rows_read=count,
        num_items=count,
        scores=model_scores(items, MODELS, name=name, confidence=0.95),
        differences=model_differences(items, MODELS, name=name, confidence=0.95),
        parts=set_parts(items, MODELS),
    )
    return found.model_copy(update=changes)


def evaluation(*sets: SetResult) -> SetsEvaluation:
    return SetsEvaluation(models=MODELS, confidence=0.95, sets=sets)


def shown(*sets: SetResult) -> str:
    return markdown(*sets_blocks(evaluation(*sets)))


def test_every_model_stands_beside_the_others_with_intervals() -> None:
    text = shown(result("gsm8k", policy=0.55))
    for figure in ("20.0 %", "50.0 %", "55.0 %", "+5.0", "+35.0", "Before fine-tuning", "hard", "easy"):
        assert figure in text, figure


def test_a_loss_beyond_chance_is_named_and_the_worst_change_is_known() -> None:
    found = evaluation(result("gsm8k", policy=0.55), result("ifeval", policy=0.4), result("math", policy=0.495))
    ((name, change),) = losing_sets(found)
    assert name == "ifeval" and points_text(change).startswith("−10.0 points (−14")
    worst = worst_change(found)
    assert worst is not None and worst[0] == "ifeval"
    assert losing_sets(evaluation(result("gsm8k", policy=0.5))) == []
    assert worst_change(SetsEvaluation(models=("start",), confidence=0.95, sets=())) is None


def test_the_first_screen_names_a_loss_and_has_the_worst_change(tmp_path: Path) -> None:
    inputs = load_report_inputs(make_run(tmp_path).context())
    lost = replace(inputs, sets=evaluation(result("gsm8k", policy=0.55), result("ifeval", policy=0.4)))
    banner = run_verdict(lost)
    assert (banner.tone, banner.headline) == ("warn", "The policy lost on ifeval.")
    (card,) = [card for card in headline_cards(lost) if "standard set" in card.label]
    assert card.label.endswith("ifeval") and card.value == "−10.0 points" and card.interval.startswith("−14")
    kept = replace(inputs, sets=evaluation(result("gsm8k", policy=0.55)))
    assert run_verdict(kept) == run_verdict(inputs)


def test_items_that_changed_are_shown_with_the_answer_that_was_wanted() -> None:
    sample = SetSample(prompt="2 + 2?", wanted="4", start="four is 4", policy="it is 5")
    text = shown(result("sums", policy=0.4, lost=(sample,)))
    for part in ("2 + 2?", "four is 4", "it is 5", "wanted: 4"):
        assert part in text


def test_a_set_that_tells_nothing_says_why() -> None:
    chats = result("bench", policy=0.5, kind="chats", scores=(), differences=(), parts=())
    untold = (("nltk's data is missing", 200),)
    silent = result("ifeval", policy=0.5, scores=(), differences=(), parts=(), untold=untold)
    text = shown(chats, silent, result("sums", policy=0.5, untold=(("its question is longer", 3),)))
    assert "bench says nothing: open questions are compared by judges" in text
    assert "ifeval says nothing: 200 items: nltk's data is missing" in text
    assert "sums leaves out 3 items for all models (3: its question is longer)" in text


def test_what_judges_say_of_open_questions_is_shown_with_who_judged() -> None:
    rate = Metric(name="r", value=0.7, unit="fraction", ci_low=0.6, ci_high=0.8, count=80)
    judge = JudgeFigures(
        name="llm", type="language_model", shown="a model", num_pairs=80, num_prompts=80,
        num_wins=56, num_ties=0, num_losses=24, win_rate=rate,
    )  # fmt: skip
    text = shown(result("bench", policy=0.5, kind="chats", scores=(), differences=(), parts=(), judges=(judge,)))
    assert "bench: policy against start model" in text and "llm: a model. It took no part in training." in text
    assert "70.0 %" in text
