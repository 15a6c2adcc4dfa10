"""Compare reward models with the first of them, suite by suite, from their certificates. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.certificate import PADDING, REPETITION, REWRITING, TEST_SUITE, Certificate, ScoreParity
from containers.contracts.outcome import Metric
from containers.contracts.registries import BENCHMARKS
from containers.evals.paired import PairedDifference
from containers.evals.suite_difference import suite_difference
from tasks.certificates.files import CertificateOnDisk


@dataclass(frozen=True)
class SuiteCell:
    """A certificate's result on one suite.

    Attributes:
        score: None if the model was not judged by the suite.
        against_first: its score against that of the first model, on the items that both were judged by.
        other_items: items that only one of the two was judged by.
    """

    score: Metric | None = None
    against_first: PairedDifference | None = None
    other_items: int = 0
    remark: str = ""


@dataclass(frozen=True)
class SuiteRow:
    """One suite, and a cell per model."""

    name: str
    cells: tuple[SuiteCell, ...]


@dataclass(frozen=True)
class CertificateTable:
    """All suites by all models, and the figures of each model as a whole."""

    models: tuple[str, ...]
    confidence: float
    suites: tuple[SuiteRow, ...]
    whole: tuple[tuple[str, tuple[Metric | None, ...]], ...]

    @property
    def num_tests(self) -> int:
        """Number of comparisons with the first model."""
        return sum(cell.against_first is not None for row in self.suites for cell in row.cells)


def compare_certificates(found: Sequence[CertificateOnDisk]) -> CertificateTable:
    """Return the table; suites are in the order in which they first appear.

    Raises:
        CertificateError: the scores behind a certificate cannot be read.
    """
    names = list(dict.fromkeys(suite.name for item in found for suite in item.certificate.suites))
    first = found[0]
    return CertificateTable(
        models=tuple(item.name for item in found),
        confidence=first.certificate.confidence,
        suites=tuple(SuiteRow(name=name, cells=tuple(_cell(name, item, first) for item in found)) for name in names),
        whole=tuple(
            (label, tuple(_whole(item.certificate)[label] for item in found)) for label in _whole(first.certificate)
        ),
    )


def _cell(name: str, model: CertificateOnDisk, first: CertificateOnDisk) -> SuiteCell:
    suite, baseline = model.suite(name), first.suite(name)
    if suite is None:
        return SuiteCell(remark="not judged by it")
    if model is first:
        return SuiteCell(score=suite.score)
    if baseline is None:
        return SuiteCell(score=suite.score, remark=f"{first.name} was not judged by it")
    remark = "" if suite.digest == baseline.digest else "other data than the first model's: only shared items compare"
    ours, theirs = model.scored_items(name), first.scored_items(name)
    shared = [item for item in theirs if item in ours]
    if not shared:
        return SuiteCell(score=suite.score, remark=remark)
    found = suite_difference(
        BENCHMARKS[suite.benchmark],
        [ours[item] for item in shared],
        [theirs[item] for item in shared],
        confidence=first.certificate.confidence,
    )
    return SuiteCell(
        score=suite.score,
        against_first=found.difference if found else None,
        other_items=len(ours.keys() ^ theirs.keys()),
        remark=remark,
    )


def _whole(certificate: Certificate) -> dict[str, Metric | None]:
    """Return the figures over all pairs of a certificate."""
    length, first = certificate.length, certificate.suites[0]
    return {
        f"Calibration error on {TEST_SUITE}": first.expected_calibration_error,
        "Effect of padding, standard deviations per doubling": length.intervention(PADDING).effect,
        "Effect of repetition, standard deviations per doubling": length.intervention(REPETITION).effect,
        "Effect of rewriting, standard deviations per doubling": length.intervention(REWRITING).effect,
        "Order flipped by padding": length.padding.flips,
        "Accuracy with both answers padded": length.padding.padded_accuracy,
        "Accuracy without the slope's part": length.controlled_accuracy,
        "Length slope given these labels, standard deviations per doubling": length.standard_slope,
        "Score parity: largest difference of a margin, share of a typical one": _margin_difference(certificate.parity),
        "Score parity: largest difference of a score": Metric(
            name="parity", value=certificate.parity.max_difference, unit="score"
        ),
    }


def _margin_difference(parity: ScoreParity) -> Metric | None:
    share = parity.margin_difference
    return None if share is None else Metric(name="parity", value=share, unit="fraction", count=parity.num_pairs)
