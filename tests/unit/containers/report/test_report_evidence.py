"""What the report says of looks at a policy in training: which step is published, why, and by whose word."""

from pathlib import Path

import pytest

from containers.contracts.evidence import Evidence, EvidenceLook, EvidencePoint, EvidenceSample
from containers.contracts.names import EVIDENCE_FILE, StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import Message, TrainingInfo
from containers.document.markdown import markdown
from containers.document.model import Fold, Note
from containers.report import figures
from containers.report.inputs import load_report_inputs
from containers.report.run_page import run_page
from containers.report.training import evidence_blocks, training_facts
from tests.unit.factories.report.report_factory import MadeRun, make_run
from tests.unit.factories.report.report_records import training_info


def sample(text: str, reward: float) -> EvidenceSample:
    return EvidenceSample(prompt=(Message(role="user", content="Which?"),), answer=text, reward=reward)


def look(step: int, against: int, shown: str, consequence: str, **changes: object) -> EvidenceLook:
    wins, losses = {"better": (50, 8), "worse": (8, 50), "neither": (30, 28)}[shown]
    return EvidenceLook.model_validate(
        {
            "step": step,
            "reward": 0.1 * step,
            "length": 9.0,
            "kl": 0.04 * step,
            "samples": [sample(f"answer of {step}", 0.1 * step)],
            "against": against,
            "num_wins": wins,
            "num_ties": 6,
            "num_losses": losses,
            "shown": shown,
            "consequence": consequence,
            "duration_s": 2.0,
            **changes,
        }
    )


EVIDENCE = Evidence(
    judge="gold",
    judge_shown="the function score of gold.py",
    num_prompts=12,
    rank_agreement=Metric(name="rank_agreement", value=0.31, unit="", ci_low=0.1, ci_high=0.5, count=12),
    start=EvidencePoint(step=0, reward=0.0, length=9.5, kl=0.0, samples=(sample("answer of the start", 0.0),)),
    least_shown=0.624,
    looks=(
        look(10, 0, "better", "trusted"),
        look(16, 10, "neither", "goes on", because="the answers have 31.0 tokens, above the limit of 20.0"),
        look(20, 10, "worse", "ends", others=(("words", 0.25),)),
    ),
    published_step=10,
    ended_because="gold saw that it is worse than step 10",
    duration_s=6.0,
)


def info(**changes: object) -> TrainingInfo:
    return training_info(StageName.TRAIN_POLICY, steps=20).model_copy(
        update={"planned_steps": 50, "published_step": 10, "duration_s": 60.0, **changes}
    )


def test_it_says_which_step_is_published_why_and_by_whose_word() -> None:
    blocks = evidence_blocks(EVIDENCE, info())
    assert isinstance(blocks[0], Note)
    assert blocks[0].text == (
        "Training ended at step 20 of 50: gold saw that it is worse than step 10. Step 10 is published: the last step "
        "that gold found better than the one trusted before it."
    )
    text = markdown(*blocks)
    assert "It took no part in training" in text and "10.0 % of the time" in text
    assert "true win rate of 62.4 %" in text
    assert "rank correlation of 0.31 (0.100 to 0.500)" in text
    assert "early: the answers have 31.0 tokens" in text and "words: 25.0 %" in text
    assert "50, 6, 8" in text and "8, 6, 50" in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"published_step": 0, "looks": EVIDENCE.looks[1:]},
            "The start model is published unchanged: gold found no step better than it.",
        ),
        (
            {"published_step": 20, "ended_because": ""},
            "Step 20 is published, the last one, although its gain was not shown",
        ),
        (
            {"judge": "", "looks": (), "start": None, "published_step": 12, "ended_because": "it is outside"},
            "Training ended at step 20 of 50: it is outside. Step 12 is published, the last one while every meter was "
            "inside its limits. No judge looked at the policy while it trained; only meters did.",
        ),
        (
            {"judge": "", "looks": (), "start": None, "published_step": 20, "ended_because": ""},
            "Step 20 is published, the last one. No judge looked at the policy",
        ),
    ],
)
def test_every_way_a_training_can_end_is_said(changes: dict[str, object], text: str) -> None:
    blocks = evidence_blocks(EVIDENCE.model_copy(update=changes), info())
    assert isinstance(blocks[0], Note) and text in blocks[0].text


def test_a_judge_that_trained_the_policy_is_no_independent_one() -> None:
    part = EVIDENCE.model_copy(update={"part_in_training": "it is one of the rewards that the policy was trained on"})
    assert "no independent judge: it is one of the rewards" in markdown(*evidence_blocks(part, info()))


def test_the_same_prompts_are_shown_at_the_start_and_where_it_is_published() -> None:
    (fold,) = [block for block in evidence_blocks(EVIDENCE, info()) if isinstance(block, Fold)]
    text = markdown(fold)
    assert "answer of the start" in text and "step 10, published" in text and "answer of 20" in text
    assert "reward 0.000 → 1.00" in text or "reward 0.00 → 1.00" in text or "reward 0 → 1.00" in text


def test_the_facts_of_a_training_name_the_published_step() -> None:
    assert dict(training_facts(info()))["Published"] == "step 10"
    assert dict(training_facts(info(published_step=0)))["Published"] == "the start model, unchanged"
    assert dict(training_facts(info(published_step=None)))["Published"] == ""


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return make_run(tmp_path, curves=False)


def test_the_page_begins_with_the_policy_and_folds_what_only_some_look_up(made: MadeRun) -> None:
    (made.folder(StageName.TRAIN_POLICY) / EVIDENCE_FILE).write_text(EVIDENCE.model_dump_json(), encoding="utf-8")
    page = run_page(load_report_inputs(made.context()), title="Report", num_samples=2)
    assert [section.title for section in page.sections if not section.is_folded] == ["Policy", "Reward model"]
    assert "Evidence while it trained" in repr(page.sections[0])
    folded = [section.title for section in page.sections if section.is_folded]
    assert folded[0] == "Data" and folded[-1] == "Glossary"


def test_labels_of_close_looks_are_on_different_sides() -> None:
    close = [(0.0, 0.0), (0.62, 1.56), (0.96, 2.5), (0.97, 2.41), (0.87, 2.26)]
    offsets = figures._label_offsets(close)
    assert offsets[0] == offsets[1], "far from all others"
    assert len({*offsets[2:]}) == 3
    assert offsets[2][1] > 0 > offsets[4][1], "the higher above, the lower below"
