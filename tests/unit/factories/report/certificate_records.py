"""A realistic certificate, for the tests of its page, of the report and of the Prefect tables."""

import random

from containers.contracts.certificate import (
    CalibrationBin,
    CalibrationByChance,
    Certificate,
    CertifiedModel,
    LengthBias,
    LengthIntervention,
    PaddingAttack,
    ParityPath,
    ScoreParity,
    SuiteEvaluation,
)
from containers.contracts.records import Histogram, Message, SamplePrediction
from tests.unit.factories.report.report_records import metric


def reward_model_certificate(*, accuracy: float = 0.913, seed: int = 0) -> Certificate:
    """Validation, one labelled suite and one of which nothing was left, with every breakdown."""
    draw = random.Random(seed)  # noqa: S311 - a test's own numbers
    margins = [draw.gauss(1.4, 1.2) for _ in range(812)]
    edges = tuple(-2.5 + 0.5 * place for place in range(17))
    counts = tuple(sum(low <= m < low + 0.5 for m in margins) for low in edges[:-1])
    validation = SuiteEvaluation(
        name="test",
        origin="held out of the training data",
        title="Preference pairs",
        rows_read=815,
        num_items=812,
        num_pairs=812,
        num_over_long=3,
        num_ties=1,
        score=metric("score", accuracy, "fraction", 0.019),
        accuracy=metric("accuracy", accuracy, "fraction", 0.019),
        mean_margin=metric("mean_margin", 1.42, "score", 0.08),
        log_loss=metric("log_loss", 0.281, "nats", 0.03),
        expected_calibration_error=metric("expected_calibration_error", 0.034, "fraction", 0.01),
        calibration_by_chance=CalibrationByChance(plug_in=0.041, perfect_mean=0.029, perfect_high=0.043),
        margins=Histogram(edges=edges, counts=counts),
        calibration=tuple(
            CalibrationBin(
                mean_predicted=p,
                observed=p - 0.03 + 0.02 * (i % 3),
                low=p - 0.11,
                high=min(1, p + 0.04),
                count=60 + 40 * i,
                num_prompts=60 + 40 * i,
            )
            for i, p in enumerate((0.55, 0.65, 0.75, 0.85, 0.95))
        ),
        subsets=(metric("general", 0.921, "fraction", 0.021, 611), metric("stem", 0.889, "fraction", 0.044, 201)),
        by_strength=(
            metric("1 (slightly better)", 0.861, "fraction", 0.04, 330),
            metric("2 (better)", 0.937, "fraction", 0.03, 322),
            metric("3 (much better)", 0.981, "fraction", 0.019, 160),
        ),
        better_scores=Histogram(edges=edges, counts=counts),
        worse_scores=Histogram(edges=edges, counts=tuple(reversed(counts))),
        length=length_bias(),
    )
    labelled = SuiteEvaluation(
        name="labelled-facts",
        title="Preference pairs",
        num_items=64,
        num_pairs=64,
        score=metric("score", 0.969, "fraction", 0.03, 64),
        accuracy=metric("accuracy", 0.969, "fraction", 0.03, 64),
        mean_margin=metric("mean_margin", 2.1, "score", 0.3, 64),
        minimum_accuracy=0.9,
    )
    empty = SuiteEvaluation(name="rewardbench-subset", num_pairs=0, num_over_long=12)
    return Certificate(
        model=CertifiedModel(origin="train_reward_model 3f3f3f3f3f3f", digest="sha256:cd", score_head_sha256="ab" * 32),
        suites=(validation, labelled, empty),
        length=length_bias(),
        parity=ScoreParity(
            num_conversations=64,
            reference="logged by training",
            bound=1e-4,
            precision="float32",
            num_pairs=32,
            typical_margin=1.62,
            margin_bound=0.243,
            orders_bound=1,
            paths=(
                ParityPath(name="training collator", max_difference=2.4e-7, max_margin_difference=3.1e-7),
                ParityPath(name="evaluator, batches of 1", max_difference=1.2e-7),
            ),
        ),
        samples=tuple(sample_prediction(place) for place in range(3)),
        score_mean=0.04,
        score_std=1.31,
    )


def length_bias() -> LengthBias:
    """A slight love of length."""
    return LengthBias(
        num_pairs=812,
        interventions=tuple(
            LengthIntervention(
                name=name,
                num_answers=num_answers,
                num_prompts=60,
                not_edited_because=((reason, 128 - num_answers),) if num_answers < 128 else (),
                mean_doublings=doublings,
                change=metric(f"{name}_change", effect * doublings, "SD", 0.03, num_answers),
                effect=metric(f"{name}_effect", effect, "SD per doubling", 0.04, num_answers),
            )
            for name, effect, doublings, num_answers, reason in (
                ("padding", -0.21, 1.2, 128, ""),
                ("repetition", -0.34, 1.0, 121, "no room below max_length"),
                ("rewriting", 0.07, 0.18, 110, "too few places for a rule"),
                ("cutting", 0.42, -1.0, 84, "no sentence end near the middle"),
            )
        ),
        slope=metric("length_slope", 0.11, "per doubling", 0.03),
        standard_slope=metric("standard_length_slope", 0.084, "SD per doubling", 0.02),
        controlled_accuracy=metric("controlled_accuracy", 0.902, "fraction", 0.02),
        by_length_difference=(
            metric("shorter by more than 300", 0.88, "fraction", 0.06, 120),
            metric("within 50", 0.904, "fraction", 0.03, 420),
            metric("longer by more than 300", 0.944, "fraction", 0.03, 272),
        ),
        padding=PaddingAttack(
            num_pairs=64,
            num_not_padded=3,
            flips=metric("padding_flips", 0.047, "fraction", 0.04, 64),
            flips_of_either_order=metric("padding_flips_of_either_order", 0.061, "fraction", 0.04, 70),
            padded_accuracy=metric("padded_accuracy", 0.893, "fraction", 0.05, 70),
            mean_rise=metric("padding_rise", -0.12, "score", 0.05, 64),
        ),
    )


def sample_prediction(place: int) -> SamplePrediction:
    """A pair with both scores; the last of three is in the wrong order."""
    questions = (
        "What is the boiling point of water at sea level, and why does it fall in the mountains?",
        "Write one sentence that says what a hash function is.",
        "Which is heavier, a litre of oil or a litre of water?",
    )
    chosen = (
        "At sea level water boils at 100 °C.\n\nHigher up the air presses less on the surface, so the vapour pressure "
        "reaches it at a lower temperature: about 93 °C at 2,000 m.",
        "A hash function maps data of any length to a value of fixed length, the same for the same data.",
        "The litre of water: oil has about nine tenths of its density, which is why it floats.",
    )
    rejected = (
        "Water boils when it is hot. It depends.",
        "It is a kind of function.",
        "A litre is a litre, so neither.",
    )
    return SamplePrediction(
        prompt=(Message(role="user", content=questions[place]),),
        chosen=chosen[place],
        rejected=rejected[place],
        score_chosen=(2.31, 1.04, -0.22)[place],
        score_rejected=(-1.12, -0.31, 0.47)[place],
        domain="general",
    )
