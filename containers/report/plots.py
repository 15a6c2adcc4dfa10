"""The plots of each subject, from its records."""

from collections.abc import Iterable, Sequence

from containers.contracts.certificate import Certificate, SuiteEvaluation
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import PolicyEvaluation
from containers.document.model import Plot
from containers.formatting import humanize
from containers.report import figures
from containers.report.curves import Curves, curve_plots

_LENGTH_DIFFERENCE = "length difference"


def training_plots(stage: StageName, curves: Curves, *, most: int | None = None) -> tuple[Plot, ...]:
    """Plot the curves of a training; those that were not recorded are left out.

    Args:
        most: number of plots that are looked at, the most telling first; None: all.
    """
    return _present(
        figures.curve_plot(
            plot.title,
            [(label, curves.get(name)) for label, name in plot.series],
            unit=plot.unit,
            salt=f"{stage} {plot.title}",
            note=plot.note,
        )
        for plot in curve_plots(stage, curves)[:most]
    )


def reward_evaluation_plots(certificate: Certificate) -> tuple[Plot, ...]:
    """Score by suite, then the validation pairs: accuracy by kind of pair, margins, calibration."""
    suites = certificate.suites
    by_suite = _present([suite_scores_plot(suites)])
    return (*by_suite, *(plot for suite in suites[:1] for plot in suite_plots(suite)))


def suite_scores_plot(suites: Sequence[SuiteEvaluation]) -> Plot | None:
    """Plot the score of each suite that has one, with the minimum that the gate demands; None for fewer than two."""
    judged = [(suite, suite.score) for suite in suites if suite.score]
    if len(judged) < 2:
        return None
    return figures.accuracy_plot(
        "Score by suite",
        [(suite.name, score) for suite, score in judged],
        minimums=[suite.minimum_accuracy for suite, _ in judged],
        salt="score by suite",
    )


def suite_plots(suite: SuiteEvaluation, *, with_scores: bool = False) -> tuple[Plot, ...]:
    """Accuracy by kind of pair, margins and calibration of one suite; a kind with one group only is left out.

    Args:
        with_scores: also the distributions of the scores of better and worse responses.
    """
    name, plots = humanize(suite.name), []
    for word, metrics in _groups(suite):
        note = "Characters, better minus worse." if word == _LENGTH_DIFFERENCE else ""
        rows = [(metric.name, metric) for metric in metrics] if len(metrics) > 1 else []
        salt = f"{suite.name} accuracy by {word}"
        plots.append(figures.accuracy_plot(f"{name}: accuracy by {word}", rows, note=note, salt=salt))
    unit = "score(better) − score(worse)"
    plots.append(
        figures.histogram_plot(
            f"{name}: margins", suite.margins, unit=unit, count_of="pairs", salt=f"{suite.name} margins"
        )
    )
    if with_scores:
        plots.append(figures.score_distribution_plot(suite, salt=f"{suite.name} scores"))
    plots.append(figures.calibration_plot(f"{name}: calibration", suite.calibration, salt=f"{suite.name} calibration"))
    return _present(plots)


def undrawn_groups(certificate: Certificate) -> str:
    """Name the plots of accuracy that are left out since all pairs fall into one group: `domain (general)`."""
    alone = [
        (word, metrics[0].name)
        for suite in certificate.suites[:1]
        for word, metrics in _groups(suite)
        if len(metrics) == 1
    ]
    return ", ".join(f"{word} ({group})" for word, group in alone)


def policy_evaluation_plots(evaluation: PolicyEvaluation) -> tuple[Plot, ...]:
    """Paired reward differences, unless all are in one bar."""
    if sum(count > 0 for count in evaluation.reward_differences.counts) < 2:
        return ()
    return _present(
        [
            figures.histogram_plot(
                "Reward of the policy minus reward of the reference",
                evaluation.reward_differences,
                unit="reward difference on the same prompt",
                count_of="prompts",
                salt="reward differences",
            )
        ]
    )


def _groups(suite: SuiteEvaluation) -> tuple[tuple[str, tuple[Metric, ...]], ...]:
    """Accuracy by subset, strength and length difference, each kind with its name."""
    return (
        ("subset", suite.subsets),
        ("strength of preference", suite.by_strength),
        (_LENGTH_DIFFERENCE, suite.length.by_length_difference),
    )


def _present(plots: Iterable[Plot | None]) -> tuple[Plot, ...]:
    return tuple(plot for plot in plots if plot is not None)
