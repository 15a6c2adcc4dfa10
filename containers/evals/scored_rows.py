"""The results of a file's rows: a line of JSON each, and the figures of all of them together. No torch."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from containers.contracts.certificate import ScoreStatistics
from containers.contracts.outcome import Metric
from containers.data.rows import prompt_identity
from containers.evals.score_rows import RowKind, RowToScore
from containers.evals.score_statistics import normalised
from containers.evals.statistics import accuracy_metric
from containers.formatting import one_line

_SEEN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row with the score of each response; `reason` and `seen` say why it has none."""

    row: RowToScore
    scores: tuple[float, ...] = ()
    reason: str = ""
    seen: str = ""

    def record(self, statistics: ScoreStatistics | None) -> dict[str, Any]:
        """Return the row's line of JSON: row number, scores, and what follows from them."""
        found: dict[str, Any] = {"file": self.row.file} if self.row.file else {}
        found["row"] = self.row.line
        if not self.scores:
            return {**found, "not_scored": self.reason, "seen": one_line(self.seen, _SEEN_CHARACTERS)}
        scores = list(self.scores)
        norm = [] if statistics is None else normalised(scores, statistics)
        if self.row.kind is RowKind.PAIR:
            return {**found, **self._pair_record(), **({"normalised": norm} if norm else {})}
        if self.row.kind is RowKind.RESPONSES:
            best = scores.index(max(scores))
            return {**found, "scores": scores, "best": best, **({"normalised": norm} if norm else {})}
        return {**found, "score": scores[0], **({"normalised": norm[0]} if norm else {})}

    @property
    def margin(self) -> float:
        """score(chosen) − score(rejected) of a pair."""
        return self.scores[0] - self.scores[1]

    def _pair_record(self) -> dict[str, Any]:
        """Return the fields of a pair; a tie, by its label or by equal scores, is neither correct nor wrong."""
        tie = "label" if self.row.is_tie else "scores" if self.margin == 0 else ""
        return {
            "score_chosen": self.scores[0],
            "score_rejected": self.scores[1],
            "margin": self.margin,
            "correct": None if tie else self.margin > 0,
            **({"tie": tie} if tie else {}),
        }


@dataclass
class Tally:
    """The rows counted and scored so far, for the figures of the whole file."""

    num_rows: int = 0
    num_scored: int = 0
    num_ties: int = 0
    not_scored: Counter[str] = field(default_factory=Counter)
    scores: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    def add(self, scored: ScoredRow) -> None:
        """Count one row."""
        self.num_rows += 1
        if not scored.scores:
            self.not_scored[scored.reason] += 1
            return
        self.num_scored += 1
        self.scores.extend(scored.scores)
        if scored.row.kind is RowKind.PAIR and scored.row.is_tie:
            self.num_ties += 1
        elif scored.row.kind is RowKind.PAIR:
            self.margins.append(scored.margin)
            self.prompts.append(prompt_identity(scored.row.prompt))

    def metrics(self, *, confidence: float, seconds: float) -> tuple[Metric, ...]:
        """Rows, rows left out by reason, the spread of the scores, accuracy of pairs, and speed."""
        counts = {"rows": self.num_rows, "scored": self.num_scored}
        counts |= {f"not_scored/{reason}": count for reason, count in self.not_scored.most_common()}
        values, count = np.asarray(self.scores), len(self.scores)
        spread = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
        return (
            *(Metric(name=name, value=value, unit="rows") for name, value in counts.items()),
            *(
                Metric(name=f"score_{name}", value=float(value), unit="score", count=count)
                for name, value in spread.items()
            ),
            *self._accuracy(confidence=confidence),
            Metric(name="seconds", value=seconds, unit="s"),
            Metric(name="rows_per_second", value=self.num_scored / max(seconds, 1e-9), unit="rows/s"),
        )

    def _accuracy(self, *, confidence: float) -> Iterator[Metric]:
        """Accuracy on pairs that the data orders; equal scores are half right, pairs of one prompt one observation."""
        if self.num_ties:
            yield Metric(name="ties", value=self.num_ties, unit="rows")
        if not self.margins:
            return
        if equal := sum(margin == 0 for margin in self.margins):
            yield Metric(name="equal_scores", value=equal, unit="rows")
        yield accuracy_metric(self.margins, name="accuracy", confidence=confidence, clusters=self.prompts)
