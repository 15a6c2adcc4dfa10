"""The page of a comparison: which arm is better, by whose word, how far each moved, what each cost, how they differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from containers.arms.records import REWARDS, START, JudgedArms, PolicyComparison
from containers.arms.tables import best_arm, comparison_blocks, deciding_judge, unbeaten
from containers.contracts.outcome import Metric
from containers.contracts.records import PolicyEvaluation
from containers.document.model import (
    Banner,
    Block,
    Code,
    Column,
    Note,
    Page,
    Plots,
    Section,
    Table,
    Text,
    Tone,
    Value,
    heads,
)
from containers.formatting import duration, interval, listed, moment, one_line, quantity

_MOST_KEYS = 40


@dataclass(frozen=True)
class ArmRun:
    """One training of one arm, for the page.

    Attributes:
        outcome: how its run ended, in a few words.
        gate_opens: whether the policy's gate opened; None: it was not reached.
        report: its own report, from the folder of the page; empty: there is none.
        gpu_hours: of all attempts at stages that no other arm uses.
    """

    arm: str
    seed: int
    outcome: str
    gate_opens: bool | None
    evaluation: PolicyEvaluation | None
    report: str
    gpu_hours: float


@dataclass(frozen=True)
class SharedResult:
    """A stage that several arms share; it was made once."""

    stage: str
    arms: tuple[str, ...]
    gpu_hours: float


@dataclass(frozen=True)
class ArmsReport:
    """Everything that the page shows.

    Attributes:
        differences: key → arm → its value; an arm without the key is not there.
        shared: what several arms used.
        gpu_hours: of everything, this comparison included.
        has_gpus: whether the hours are of GPUs; else they are of the machine.
        comparison: None where fewer than two policies were judged; `problem` says why.
    """

    name: str
    run_id: str
    started_at: str
    command: str
    profile: str
    runs: tuple[ArmRun, ...]
    differences: Mapping[str, Mapping[str, Any]]
    shared: tuple[SharedResult, ...]
    gpu_hours: float
    max_gpu_hours: float | None
    has_gpus: bool
    comparison: PolicyComparison | None
    problem: str = ""
    mlflow_url: str = ""
    prefect_url: str = ""

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in order."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def counted(self) -> str:
        """Whose time is counted."""
        return "GPU time" if self.has_gpus else "Time of this machine"


def arms_page(report: ArmsReport) -> Page:
    """Return the page."""
    matrix: tuple[Block, ...] = (
        (Note(report.problem, "caveat"),) if report.comparison is None else comparison_blocks(report.comparison)
    )
    return Page(
        f"Comparison: {one_line(report.name, 120)}",
        facts=(
            ("Started", moment(report.started_at)),
            ("Run", report.run_id),
            ("Hardware profile", report.profile),
            ("", Text("MLflow", link=report.mlflow_url)),
            ("", Text("Prefect", link=report.prefect_url)),
        ),
        banner=arms_verdict(report),
        sections=(
            Section("Arm against arm", matrix, anchor="matrix", short="Arm against arm"),
            Section("Each arm", _each(report), anchor="arms", short="Each arm"),
            Section("What differs", _differences(report), anchor="differences", short="What differs"),
            Section("Cost", _cost(report), anchor="cost", short="Cost"),
            Section("How to repeat", (Code(report.command),), anchor="repeat", is_folded=True),
        ),
        footer=f"Written by rlhf-flows from the records of run {one_line(report.run_id, 80)}. The page needs no "
        "network and runs no script.",
    )


def arms_verdict(report: ArmsReport) -> Banner:
    """Return which arm is better, by whose word; what did not come to its end follows."""
    ended = [f"{_named(run, report)}: {run.outcome}." for run in report.runs if run.evaluation is None]
    judge = None if report.comparison is None else deciding_judge(report.comparison)
    if report.comparison is None or judge is None:
        return Banner("bad", "No two policies could be compared.", (report.problem, *ended))
    details = [_standing(judge), *ended]
    if judge.name == REWARDS:
        details.insert(0, "No judge but the rewards compared them. A higher reward is no evidence of better answers.")
    elif judge.trained:
        details.insert(1, f"{judge.name} took part in the training of {listed(judge.trained)}.")
    best = best_arm(judge)
    what = "has a higher reward than" if judge.name == REWARDS else "is better than"
    tone: Tone = "good" if best and judge.name != REWARDS and best not in judge.trained else "plain"
    if best:
        others = "every other arm" if START not in report.comparison.arms else "every other arm and the start model"
        return Banner(tone, f"{best} {what} {others}, by {judge.name}.", tuple(details))
    leaders = listed(unbeaten(judge, report.comparison.arms))
    return Banner(
        "plain", f"No arm is shown to be better than all others by {judge.name}.", (f"Unbeaten: {leaders}.", *details)
    )


def _each(report: ArmsReport) -> tuple[Block, ...]:
    rows = tuple(_run_row(run, report) for run in report.runs)
    titles = ("Arm", "Policy gate", "Reward gain", "KL, nats", "Length, tokens", "Ended by itself")
    return (
        Table((*heads(*titles, numbers=4), Column("Report")), rows, name="arms"),
        Note(
            "Reward gain: over the model that the arm started from, by the rewards of that arm. Rewards of different "
            "arms are on one scale only where the same rewards judge all of them.",
            "quiet",
        ),
        Plots(tuple(plot for plot in _frontiers(report) if plot is not None)),
    )


def _run_row(run: ArmRun, report: ArmsReport) -> tuple[Value, ...]:
    found = run.evaluation
    tone: Tone | None = None if run.gate_opens is None else ("good" if run.gate_opens else "warn")
    gain, kl, length, ended = (
        (None, None, None, None)
        if found is None
        else (found.reward_difference, found.kl, found.length_policy, found.ended_policy)
    )
    return (
        _named(run, report),
        Text(one_line(run.outcome, 160), tone=tone if found else "bad"),
        _with_interval(gain),
        _with_interval(kl),
        _with_interval(length),
        _with_interval(ended),
        Text(run.report, is_code=True) if run.report else None,
    )


def _with_interval(metric: Metric | None) -> Value:
    return None if metric is None else Text(quantity(metric.value, metric.unit), sub=interval(metric))


def _frontiers(report: ArmsReport) -> tuple[Any, ...]:
    from containers.arms.plots import arms_frontier

    judged = [(run, run.evaluation) for run in report.runs if run.evaluation is not None]
    judges = () if report.comparison is None else report.comparison.judges
    plots = []
    if any(judge.name == REWARDS for judge in judges):
        points = [
            (run.arm, found.kl.value, found.reward_difference.value, _ends(found.reward_difference))
            for run, found in judged
        ]
        plots.append(
            arms_frontier("Reward gain against √KL", points, unit="reward gain on held-out prompts", salt="arms-reward")
        )
    for judge in judges:
        rates = {value.arm: dict(value.by_seed) for value in judge.values}
        if judge.name == REWARDS or judge.problem or not rates:
            continue
        values = [
            (run.arm, found.kl.value, rates[run.arm][run.seed], None)
            for run, found in judged
            if run.seed in rates.get(run.arm, {})
        ]
        unit = f"right answers by {judge.name}" if judge.is_outcome else f"mean value by {judge.name}"
        plots.append(arms_frontier(f"{judge.name} against √KL", values, unit=unit, salt=f"arms-{judge.name}"))
    return tuple(plots)


def _ends(metric: Metric) -> tuple[float, float] | None:
    return None if metric.ci_low is None or metric.ci_high is None else (metric.ci_low, metric.ci_high)


def _differences(report: ArmsReport) -> tuple[Block, ...]:
    arms = report.arms
    rows = tuple(
        (Text(key, is_code=True), *(_setting(of_arms[arm]) if arm in of_arms else None for arm in arms))
        for key, of_arms in list(report.differences.items())[:_MOST_KEYS]
    )
    left = len(report.differences) - len(rows)
    more = (Note(f"{left:,} more keys differ; they are in the reports of the arms.", "quiet"),) if left > 0 else ()
    return (Table(heads("Key", *arms), rows, empty="The arms differ in their seeds alone."), *more)


def _setting(value: Any) -> Value:
    if value is None:
        return "null"
    return one_line(str(value).lower() if isinstance(value, bool) else str(value), 80)


def _cost(report: ArmsReport) -> tuple[Block, ...]:
    rows: tuple[tuple[Value, ...], ...] = (
        *((_named(run, report), _time(run.gpu_hours)) for run in report.runs),
        *(
            (
                Text(result.stage, sub="for all arms" if len(result.arms) == len(report.arms) else listed(result.arms)),
                _time(result.gpu_hours),
            )
            for result in report.shared
        ),
        (Text("all", sub="with the comparison itself"), _time(report.gpu_hours)),
    )
    limit = "" if report.max_gpu_hours is None else f" The limit is {_time(report.max_gpu_hours)} (max_gpu_hours)."
    lead = f"Of all attempts, failed ones too. A stage that several arms share is made once.{limit}"
    return (Note(lead, "lead"), Table(heads("What", report.counted, numbers=1), rows))


def _time(hours: float) -> str:
    return duration(3600 * hours)


def _standing(judge: JudgedArms) -> str:
    """What each arm reached by this judge, the best first."""
    ranked = sorted(judge.values, key=lambda value: -value.value.value)
    return ", ".join(f"{value.arm} {quantity(value.value.value, value.value.unit)}" for value in ranked) + (
        f" by {judge.name}." if ranked else ""
    )


def _named(run: ArmRun, report: ArmsReport) -> str:
    several = len({one.seed for one in report.runs}) > 1
    return f"{run.arm}, seed {run.seed}" if several else run.arm
