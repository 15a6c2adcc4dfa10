"""The plots of each section of the page."""

from collections.abc import Iterable, Sequence

from containers.contracts.certificate import SuiteEvaluation
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.formatting import humanize
from containers.report import figures
from containers.report.inputs import Curves, ReportInputs
from containers.report.plot import Plot

_LENGTH_DIFFERENCE = "length difference"
_REWARD_LOSS_NOTE = (
    "Training lowers this loss: it includes the penalty on mean scores off zero (center_rewards_coefficient) and the "
    "demanded margin (use_margin) where they are set. The log loss under Evaluation includes neither."
)


def report_plots(inputs: ReportInputs) -> dict[str, tuple[Plot, ...]]:
    """Every plot of the page by the section that shows it."""
    return {
        "funnel": _funnel(inputs),
        "sft": _sft(inputs),
        "reward_training": _reward_training(inputs),
        "reward_evaluation": _reward_evaluation(inputs),
        "policy_training": _policy_training(inputs),
        "policy_evaluation": _policy_evaluation(inputs),
    }


def _funnel(inputs: ReportInputs) -> tuple[Plot, ...]:
    """Where every row went."""
    return _present([figures.funnel_plot(inputs.funnel, salt="rows by fate")] if inputs.funnel else [])


def _sft(inputs: ReportInputs) -> tuple[Plot, ...]:
    """Curves of supervised fine-tuning."""
    curves = inputs.curves.get(StageName.TRAIN_SFT, Curves())
    loss = (("training", curves.get("loss")), ("held out", curves.get("eval_loss")))
    accuracy = (
        ("training", curves.get("mean_token_accuracy")),
        ("held out", curves.get("eval_mean_token_accuracy")),
    )
    return _present(
        [
            figures.curve_plot("Loss", loss, unit="nats per token", salt="sft loss"),
            figures.curve_plot("Token accuracy", accuracy, unit="share of tokens", salt="sft accuracy"),
        ]
    )


def _reward_training(inputs: ReportInputs) -> tuple[Plot, ...]:
    """Curves of reward-model training."""
    curves = inputs.curves.get(StageName.TRAIN_REWARD_MODEL, Curves())

    def plot(title: str, name: str, unit: str, note: str = "") -> Plot | None:
        both = (("training", curves.get(name)), ("held out", curves.get(f"eval_{name}")))
        return figures.curve_plot(title, both, unit=unit, salt=f"reward model {name}", note=note)

    return _present(
        [
            plot("Loss", "loss", "nats per pair", _REWARD_LOSS_NOTE),
            plot("Pairwise accuracy", "accuracy", "share of pairs"),
            plot("Mean margin", "margin", "score"),
            figures.curve_plot(
                "Gradient norm",
                (("gradient norm", curves.get("grad_norm")),),
                unit="norm before clipping",
                salt="reward model gradient norm",
            ),
        ]
    )


def _reward_evaluation(inputs: ReportInputs) -> tuple[Plot, ...]:
    """Score by suite, then the validation pairs: accuracy by kind of pair, margins, calibration."""
    if inputs.reward_model is None:
        return ()
    suites = inputs.reward_model.suites
    by_suite = suite_scores_plot(suites) if sum(suite.score is not None for suite in suites) > 1 else None
    return _present([by_suite, *(plot for suite in suites[:1] for plot in suite_plots(suite))])


def suite_scores_plot(suites: Sequence[SuiteEvaluation]) -> Plot | None:
    """Plot the score of each suite that has one, with the minimum that the gate demands."""
    judged = [(suite, suite.score) for suite in suites if suite.score]
    return figures.accuracy_plot(
        "Score by suite",
        [(suite.name, score) for suite, score in judged],
        minimums=[suite.minimum_accuracy for suite, _ in judged],
        salt="score by suite",
    )


def suite_plots(suite: SuiteEvaluation) -> tuple[Plot, ...]:
    """Accuracy by kind of pair, margins and calibration of one suite; a kind with one group only is left out."""
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
    plots.append(figures.calibration_plot(f"{name}: calibration", suite.calibration, salt=f"{suite.name} calibration"))
    return _present(plots)


def undrawn_groups(inputs: ReportInputs) -> str:
    """Name the plots of accuracy that are left out since all pairs fall into one group: `domain (general)`."""
    suites = inputs.reward_model.suites[:1] if inputs.reward_model else ()
    alone = [(word, metrics[0].name) for suite in suites for word, metrics in _groups(suite) if len(metrics) == 1]
    return ", ".join(f"{word} ({group})" for word, group in alone)


def _groups(suite: SuiteEvaluation) -> tuple[tuple[str, tuple[Metric, ...]], ...]:
    """Accuracy by subset, strength and length difference, each kind with its name."""
    return (
        ("subset", suite.subsets),
        ("strength of preference", suite.by_strength),
        (_LENGTH_DIFFERENCE, suite.length.by_length_difference),
    )


def _policy_training(inputs: ReportInputs) -> tuple[Plot, ...]:
    """Reward, KL, length and entropy over the steps of policy training."""
    curves = inputs.curves.get(StageName.TRAIN_POLICY, Curves())
    wanted = (
        ("Reward", "reward", "reward"),
        ("KL to the reference", "kl", "nats per completion"),
        ("Completion length", "completion_length", "tokens"),
        ("Entropy", "entropy", "nats per token"),
        ("Completions that ended by themselves", "ended_fraction", "share of completions"),
        ("Prompts on which all rewards were equal", "prompts_without_signal_fraction", "share of prompts"),
    )
    return _present(
        figures.curve_plot(title, ((title, curves.get(name)),), unit=unit, salt=f"policy {name}")
        for title, name, unit in wanted
    )


def _policy_evaluation(inputs: ReportInputs) -> tuple[Plot, ...]:
    """Paired reward differences, unless all are in one bar."""
    if inputs.policy is None or sum(count > 0 for count in inputs.policy.reward_differences.counts) < 2:
        return ()
    return _present(
        [
            figures.histogram_plot(
                "Reward of the policy minus reward of the reference",
                inputs.policy.reward_differences,
                unit="reward difference on the same prompt",
                count_of="prompts",
                salt="reward differences",
            )
        ]
    )


def _present(plots: Iterable[Plot | None]) -> tuple[Plot, ...]:
    return tuple(plot for plot in plots if plot is not None)
