"""Scored pairs to the figures of one file: accuracy as a whole and by group, margins, calibration. No torch."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from containers.contracts.outcome import Metric
from containers.contracts.records import PairFileEvaluation, SamplePrediction
from containers.contracts.stage_configs import EvaluateRewardModelConfig
from containers.stages.preference_rows import Pair
from containers.stages.statistics import (
    accuracy_metric,
    calibration_bins,
    expected_calibration_error,
    margin_histogram,
    mean_metric,
    pair_losses,
)

# Chosen minus rejected, characters: upper end (exclusive) and label of each group, in order.
_LENGTH_GROUPS = (
    (-300, "shorter by more than 300"),
    (-50, "shorter by 51 to 300"),
    (51, "within 50"),
    (301, "longer by 51 to 300"),
)
_MUCH_LONGER = "longer by more than 300"
_LENGTH_LABELS = (*(label for _, label in _LENGTH_GROUPS), _MUCH_LONGER)


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """A pair and what the reward model thinks of its two sides."""

    pair: Pair
    score_chosen: float
    score_rejected: float

    @property
    def margin(self) -> float:
        """score(chosen) − score(rejected); positive is right."""
        return self.score_chosen - self.score_rejected

    @property
    def length_difference(self) -> int:
        """Characters of chosen minus those of rejected."""
        return len(self.pair.chosen) - len(self.pair.rejected)

    def as_sample(self) -> SamplePrediction:
        """The pair as the report shows it."""
        return SamplePrediction.model_validate(
            {
                "prompt": self.pair.prompt,
                "chosen": self.pair.chosen,
                "rejected": self.pair.rejected,
                "score_chosen": self.score_chosen,
                "score_rejected": self.score_rejected,
                "domain": self.pair.domain,
            }
        )


@dataclass(frozen=True)
class ScoredFile:
    """A file of pairs: what could be read (`candidates`), what was scored (`pairs`), and what was left out."""

    name: str
    origin: str
    candidates: tuple[Pair, ...]
    malformed: int = 0
    minimum_accuracy: float | None = None
    too_long: int = 0
    pairs: tuple[ScoredPair, ...] = field(default=())

    def with_scores(self, pairs: Sequence[ScoredPair], *, too_long: int) -> "ScoredFile":
        """This file, scored."""
        return replace(self, pairs=tuple(pairs), too_long=too_long)


def evaluate_file(file: ScoredFile, config: EvaluateRewardModelConfig, *, seed: int) -> PairFileEvaluation:
    """All figures of one file. Accuracy counts a tie as half right and has a Wilson interval, means a bootstrap one.

    A file of which no pair is left has no figures, and so fails a gate that asks for one.
    """
    left_out = file.malformed + file.too_long
    margins = [item.margin for item in file.pairs]
    if not margins:
        return PairFileEvaluation(
            name=file.name,
            origin=file.origin,
            num_pairs=0,
            left_out=left_out,
            minimum_accuracy=file.minimum_accuracy,
        )

    figures = _Figures(file.pairs, config, seed)
    calibration = calibration_bins(margins)
    return PairFileEvaluation(
        name=file.name,
        origin=file.origin,
        num_pairs=len(margins),
        left_out=left_out,
        num_ties=margins.count(0.0),
        accuracy=accuracy_metric(margins, name="accuracy", confidence=config.confidence),
        mean_margin=figures.mean(margins, "mean_margin", "score"),
        log_loss=figures.mean(pair_losses(margins), "log_loss", "nats"),
        expected_calibration_error=Metric(
            name="expected_calibration_error",
            value=expected_calibration_error(calibration),
            unit="fraction",
            count=len(margins),
        ),
        margins=margin_histogram(margins),
        calibration=calibration,
        by_domain=figures.accuracy_by(lambda item: item.pair.domain or "not named"),
        by_strength=figures.accuracy_by(lambda item: f"{item.pair.margin:g}"),
        by_length_difference=figures.accuracy_by(lambda item: length_group(item.length_difference), _LENGTH_LABELS),
        minimum_accuracy=file.minimum_accuracy,
    )


@dataclass(frozen=True)
class _Figures:
    """Means and accuracies of these pairs, with the intervals that the config asks for."""

    pairs: Sequence[ScoredPair]
    config: EvaluateRewardModelConfig
    seed: int

    def mean(self, values: list[float], name: str, unit: str) -> Metric:
        return mean_metric(
            values,
            name=name,
            unit=unit,
            confidence=self.config.confidence,
            num_bootstrap=self.config.num_bootstrap,
            seed=self.seed,
        )

    def accuracy_by(self, group: Callable[[ScoredPair], str], order: Sequence[str] = ()) -> tuple[Metric, ...]:
        """Accuracy of each group that has a pair, in `order`, or else sorted by name."""
        margins: dict[str, list[float]] = defaultdict(list)
        for item in self.pairs:
            margins[group(item)].append(item.margin)
        names = [name for name in order if name in margins] if order else sorted(margins)
        return tuple(accuracy_metric(margins[name], name=name, confidence=self.config.confidence) for name in names)


def length_group(difference: int) -> str:
    """The label of a length difference. Example: −120 is `shorter by 51 to 300`."""
    return next((label for end, label in _LENGTH_GROUPS if difference < end), _MUCH_LONGER)
