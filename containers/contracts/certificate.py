"""The certificate of a reward model, `certificate.json`: the suites that it was measured by, and the figures."""

import math

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.outcome import Metric
from containers.contracts.records import Histogram, SamplePrediction

SCORE_STATISTICS_FILE = "score_statistics.json"


class ScoreStatistics(Frozen):
    """`score_statistics.json`, in the model's folder beside its weights."""

    mean: float
    standard_deviation: float = Field(ge=0, description="Of all scores, with division by their number")
    num_scores: int = Field(ge=1)
    scores_of: str = Field(description="Which conversations were scored")


# The suite of the run's own test pairs; always the first.
TEST_SUITE = "test"
# Edits that leave the content alone; rewriting pools longer and shorter wording.
PADDING, REPETITION, REWRITING = "padding", "repetition", "rewriting"


class PaddingAttack(Frozen):
    """How often the order of a pair changes when filler is appended to one of its responses, or to both."""

    num_pairs: int = Field(0, ge=0, description="Pairs attacked that were in the right order before")
    num_not_padded: int = Field(0, ge=0, description="Pairs drawn without room for filler below max_length")
    flips: Metric | None = Field(None, description="Share of attacked pairs whose padded rejected side wins or ties")
    flips_of_either_order: Metric | None = Field(
        None, description="Share of drawn pairs, right or wrong, whose padded lower-scored side wins or ties"
    )
    padded_accuracy: Metric | None = Field(
        None, description="Share of drawn pairs in the right order with both sides padded to the same length"
    )
    mean_rise: Metric | None = Field(None, description="How much the filler raises the score of the rejected side")


class LengthIntervention(Frozen):
    """How the score of the same response changes when an edit makes it longer or shorter."""

    name: str = Field(description="`padding`, `repetition`, `rewriting` (both wordings), `longer wording` …")
    num_answers: int = Field(0, ge=0, description="Responses edited, of better and worse sides")
    num_prompts: int = Field(0, ge=0, description="Distinct prompts among them; intervals are over prompts")
    not_edited_because: tuple[tuple[str, int], ...] = Field((), description="Responses without the edit, by reason")
    mean_doublings: float | None = Field(None, description="Mean of log2(length after / length before)")
    change: Metric | None = Field(None, description="Mean change of the score, in standard deviations of the scores")
    effect: Metric | None = Field(
        None, description="Change of the score per doubling of the length: least squares through the origin"
    )

    @property
    def num_not_edited(self) -> int:
        """Drawn responses without this edit."""
        return sum(count for _, count in self.not_edited_because)


class LengthBias(Frozen):
    """How the score depends on the length of a response: by edits of the same response, and across responses.

    Lengths are in characters. Edits that leave the content alone show what length itself does. The slope and what
    follows from it compare different responses, the better minus the worse one of a prompt, so they also hold what
    quality and the labels have to do with length.
    """

    num_pairs: int = Field(0, ge=0)
    interventions: tuple[LengthIntervention, ...] = Field((), description="Edits of the same response, on both sides")
    slope: Metric | None = Field(
        None, description="Score per doubling of the length: margin against log2 of the length ratio, with intercept"
    )
    standard_slope: Metric | None = Field(
        None, description="The same in standard deviations of the scores, to compare models"
    )
    controlled_accuracy: Metric | None = Field(None, description="Accuracy of the margins minus the slope's part")
    by_length_difference: tuple[Metric, ...] = Field((), description="Accuracy; better minus worse, characters")
    padding: PaddingAttack = PaddingAttack()

    def intervention(self, name: str) -> LengthIntervention:
        """Return the intervention of that name; one without figures if it was not measured."""
        return next((found for found in self.interventions if found.name == name), LengthIntervention(name=name))


class CalibrationBin(Frozen):
    """Pairs whose predicted probability is in one bin, and how often the prediction was right."""

    mean_predicted: float = Field(ge=0, le=1)
    observed: float = Field(ge=0, le=1)
    low: float | None = Field(None, ge=0, le=1, description="Lower end of the interval of `observed`, over prompts")
    high: float | None = Field(None, ge=0, le=1)
    count: int = Field(ge=1, description="Pairs")
    num_prompts: int = Field(0, ge=0, description="Prompts of these pairs")


class CalibrationByChance(Frozen):
    """The calibration error as counted from the bins, beside what a perfectly calibrated model shows on these pairs."""

    plug_in: float = Field(ge=0, le=1, description="Mean distance of predicted and observed share, weighted by pairs")
    perfect_mean: float = Field(ge=0, le=1, description="Mean plug-in error of a perfect model, simulated")
    perfect_high: float = Field(ge=0, le=1, description="19 of 20 perfect models show at most this")


class SuiteEvaluation(Frozen):
    """All figures of one suite. A pair compares one better with one worse response."""

    name: str
    benchmark: str = "pairs"
    title: str = Field("", description="The benchmark's usual spelling")
    origin: str = ""
    digest: str = Field("", description="Of the data")
    source: str = Field("", description="Paper or repository of the scoring rule")
    tie_rule: str = ""
    rows_read: int = Field(0, ge=0)
    num_items: int = Field(0, ge=0, description="Rows whose responses were all scored")
    num_prompts: int = Field(0, ge=0, description="Distinct prompts among the items; intervals are over prompts")
    num_pairs: int = Field(ge=0)
    num_over_long: int = Field(0, ge=0, description="Items with a response longer than max_length")
    left_out_because: tuple[tuple[str, int], ...] = Field((), description="Rows that could not be used, by reason")
    left_out_examples: tuple[str, ...] = ()
    num_ties: int = Field(0, ge=0, description="Pairs of equal scores; in `accuracy` each counts as half right")
    score: Metric | None = Field(None, description="The benchmark's own figure; null where no item was left")
    sections: tuple[Metric, ...] = Field((), description="Weighted parts of `score`; `name` is the section")
    subsets: tuple[Metric, ...] = Field((), description="`name` is the subset")
    missing: tuple[str, ...] = Field((), description="Parts of the benchmark that this file lacks")
    accuracy: Metric | None = Field(None, description="Share of pairs in the right order")
    mean_margin: Metric | None = None
    log_loss: Metric | None = None
    expected_calibration_error: Metric | None = Field(None, description="Without the part of chance; over prompts")
    calibration_by_chance: CalibrationByChance | None = None
    margins: Histogram | None = None
    better_scores: Histogram | None = Field(None, description="Scores of better responses; edges as `worse_scores`")
    worse_scores: Histogram | None = None
    calibration: tuple[CalibrationBin, ...] = ()
    by_strength: tuple[Metric, ...] = Field((), description="Accuracy; `name` is the strength of the preference")
    length: LengthBias = LengthBias()
    minimum_accuracy: float | None = Field(None, description="Least `score` that the gate accepts")

    @property
    def num_left_out(self) -> int:
        """Number of rows and items that no figure includes."""
        return self.num_over_long + sum(count for _, count in self.left_out_because)

    @property
    def scores_file(self) -> str:
        """The parquet file beside the certificate with both scores of every pair."""
        return f"scores_{self.name}.parquet"

    @property
    def item_scores_file(self) -> str:
        """The parquet file beside the certificate with the scores of all responses of every item."""
        return f"item_scores_{self.name}.parquet"


class ParityPath(Frozen):
    """One code path that scored the conversations, and how far it is from the reference."""

    name: str
    max_difference: float = Field(ge=0, description="Of a score")
    max_margin_difference: float = Field(0.0, ge=0, description="Of the margin of a pair")
    num_orders_changed: int = Field(0, ge=0, description="Pairs that it orders otherwise")


class ScoreParity(Frozen):
    """Scores of the same conversations on every code path that computes scores; the first one is the reference.

    Certificates of older versions have no margins: `num_pairs` is 0.
    """

    num_conversations: int = Field(ge=1)
    reference: str = Field(description="The code path with which the others are compared")
    bound: float = Field(gt=0, description="Largest difference of a score that rounding explains")
    num_pairs: int = Field(0, ge=0, description="Pairs of two conversations with the same prompt")
    typical_margin: float = Field(0.0, ge=0, description="Root mean square of the pairs' margins by the reference")
    margin_bound: float | None = Field(None, gt=0, description="Largest difference of a margin that is allowed")
    orders_bound: int | None = Field(None, ge=0, description="Most orders that may change on a code path")
    precision: str = ""
    paths: tuple[ParityPath, ...]

    @property
    def max_difference(self) -> float:
        """The largest difference of a score on any code path."""
        return max((path.max_difference for path in self.paths), default=0.0)

    @property
    def margin_difference(self) -> float | None:
        """The largest difference of a margin on any code path, as a share of a typical margin; None: not measured."""
        largest = max((path.max_margin_difference for path in self.paths), default=0.0)
        return largest / self.typical_margin if self.typical_margin else None

    @property
    def num_orders_changed(self) -> int:
        """Pairs that the code path with most such pairs orders otherwise than the reference."""
        return max((path.num_orders_changed for path in self.paths), default=0)

    def allows(self, path: ParityPath) -> bool:
        """Whether a code path differs by no more than all three bounds."""
        return (
            path.max_difference <= self.bound
            and (self.margin_bound is None or path.max_margin_difference <= self.margin_bound)
            and (self.orders_bound is None or path.num_orders_changed <= self.orders_bound)
        )

    @property
    def holds(self) -> bool:
        """Whether every code path is equal to the reference within the bounds."""
        return all(map(self.allows, self.paths))


class CertifiedModel(Frozen):
    """Which model the certificate is about."""

    origin: str = ""
    digest: str = Field(description="Of the artifact; the policy stage accepts no other")
    score_head_sha256: str = Field(description="Digest of the score head's weights, float32, row-major")
    architecture: str = ""
    num_parameters: int = Field(0, ge=0)
    max_length: int = Field(0, ge=0, description="Longest conversation that was scored, tokens")
    precision: str = ""
    algorithm: str = ""
    num_training_examples: int = Field(0, ge=0)


# How alike the errors of two checkpoints of a training may be: least, most, and as `optimism` takes them to be.
_LEAST_ALIKE, _MOST_ALIKE, _ALIKE = 0.7, 0.95, 0.9


class CheckpointChoice(Frozen):
    """The choice of a checkpoint on pairs that also certify the model."""

    num_pairs: int = Field(ge=1, description="Test pairs on which the checkpoint was chosen")
    num_checkpoints: int = Field(ge=2, description="Checkpoints among which it was chosen")
    optimism: float = Field(
        ge=0, description="By about how much the accuracy is too high where checkpoints are equally good; an estimate"
    )
    by_setting: bool = Field(False, description="validation_parts.tune is 0; else too few prompts are held out")

    @property
    def optimism_range(self) -> tuple[float, float]:
        """The optimism where the errors of two checkpoints correlate by 0.95, and where by 0.7, in place of 0.9.

        Example: 3.2 points give 2.3 to 5.5 points.
        """
        low, high = (math.sqrt((1 - alike) / (1 - _ALIKE)) for alike in (_MOST_ALIKE, _LEAST_ALIKE))
        return self.optimism * low, self.optimism * high


class Certificate(Frozen):
    """All measurements of one reward model. The first suite is the test pairs of the run's own data."""

    model: CertifiedModel
    suites: tuple[SuiteEvaluation, ...]
    length: LengthBias = Field(LengthBias(), description="Over the pairs of all suites")
    parity: ScoreParity
    choice: CheckpointChoice | None = Field(None, description="null: no choice was made on the pairs that certify")
    samples: tuple[SamplePrediction, ...] = ()
    score_mean: float
    score_std: float
    confidence: float = Field(0.95, description="Level of every interval")
