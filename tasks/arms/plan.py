"""What a comparison will take, before anything is spent: GPU hours of each arm, and what they share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from containers.contracts.identity import stage_profile
from containers.contracts.names import StageName
from containers.document.model import Table, heads
from containers.formatting import listed, number
from tasks.arms.load import Arm, Comparison
from tasks.arms.shared import made_by
from tasks.config.errors import InvalidConfigError, Mistake
from tasks.pipeline.lookup import look_up_stages
from tasks.plan.inputs.cpu_speed import measured_cpu_speed
from tasks.plan.run_plan import RunPlan, draft_plan
from tasks.run.changes import flat

_HOUR_S = 3600.0
_MOST_SHOWN, _LONGEST = 3, 40


@dataclass(frozen=True)
class PlannedResult:
    """One result that some arms use; it is made once.

    Attributes:
        users: the arms, by place; the first makes it.
        gpu_hours: estimated; 0 if it exists already; None: unknown.
    """

    stage: StageName
    users: tuple[int, ...]
    gpu_hours: float | None


@dataclass(frozen=True)
class ArmsPlan:
    """The plan of a comparison; without GPUs, hours of the machine take the place of GPU hours."""

    comparison: Comparison
    results: tuple[PlannedResult, ...]
    warnings: tuple[str, ...]

    @property
    def gpu_hours(self) -> float:
        """Estimated sum of what is known."""
        return sum(result.gpu_hours or 0.0 for result in self.results)

    @property
    def is_whole(self) -> bool:
        """Whether every result has an estimate."""
        return all(result.gpu_hours is not None for result in self.results)

    @property
    def shared(self) -> tuple[PlannedResult, ...]:
        """The results that several arms use."""
        return tuple(result for result in self.results if len(result.users) > 1)

    def own_hours(self, place: int) -> float | None:
        """Estimated GPU hours of what only that arm uses; None: unknown."""
        return _sum(result for result in self.results if result.users == (place,))

    def require_budget(self) -> None:
        """Check that the arms fit the limit, as far as is known.

        Raises:
            InvalidConfigError: the estimate alone is above it.
        """
        limit = self.comparison.file.max_gpu_hours
        if limit is None or self.gpu_hours <= limit:
            return
        each = ", ".join(f"{arm.label} {number(self.own_hours(place))}" for place, arm in self._arms())
        shared = number(sum(result.gpu_hours or 0.0 for result in self.shared))
        text = (
            f"{limit:g} is less than the {number(self.gpu_hours)} GPU hours that the arms take as estimated: "
            f"shared stages {shared}, {each}. Raise it, leave arms or seeds out, or shorten their schedules."
        )
        raise InvalidConfigError(str(self.comparison.path), [Mistake("max_gpu_hours", text)])

    def table(self) -> Table:
        """A row for what is shared, and one for each arm: the keys that it sets, and its hours."""
        rows = [
            (
                "shared by several arms",
                ", ".join(dict.fromkeys(result.stage for result in self.shared)) or "nothing",
                number(_sum(self.shared)),
            )
        ]
        for place, arm in self._arms():
            rows.append((arm.label, _settings(arm), number(self.own_hours(place))))
        known = self.gpu_hours if self.is_whole or self.gpu_hours else None
        rows.append(("all", "" if self.is_whole else "as far as is known", number(known)))
        has_gpus = self.comparison.own_run.gpu_profile.num_gpus > 0
        hours = "GPU hours, estimated" if has_gpus else "hours of this machine, estimated"
        return Table(heads("Arm", "Differs in", hours, numbers=1), tuple(rows))

    def _arms(self) -> Iterator[tuple[int, Arm]]:
        return iter(enumerate(self.comparison.arms))


def _sum(results: Iterable[PlannedResult]) -> float | None:
    """Estimated GPU hours of all; None if one is unknown."""
    hours = [result.gpu_hours for result in results]
    return None if None in hours else sum(each or 0.0 for each in hours)


def plan_arms(comparison: Comparison) -> ArmsPlan:
    """Plan every arm; a result that exists already takes nothing.

    Raises:
        InvalidConfigError: an arm cannot work; lists the mistakes of all.
    """
    plans = [_planned(arm) for arm in comparison.arms]
    mistakes = [
        Mistake(f"arms.{arm.name}", str(mistake))
        for arm, plan in zip(comparison.arms, plans, strict=True)
        for mistake in plan.mistakes
    ]
    if mistakes:
        raise InvalidConfigError(str(comparison.path), tuple(dict.fromkeys(mistakes)))
    results = tuple(
        PlannedResult(stage, users, _gpu_hours(plans[maker], stage))
        for maker, stage, users in made_by([arm.config for arm in comparison.arms])
    )
    warned: dict[str, dict[str, None]] = {}
    for arm, plan in zip(comparison.arms, plans, strict=True):
        for warning in plan.warnings:
            warned.setdefault(warning, {})[arm.name] = None
    warnings = (f"{listed(list(names))}: {warning}" for warning, names in warned.items())
    return ArmsPlan(comparison, results, tuple(warnings))


def _planned(arm: Arm) -> RunPlan:
    found = look_up_stages(arm.config)
    return draft_plan(
        arm.config,
        cached=found.texts.__getitem__,
        artifacts=found.artifacts,
        cpu=measured_cpu_speed(arm.config.gpu_profile),
        config_path=arm.loaded.path,
    )


def _gpu_hours(plan: RunPlan, stage: StageName) -> float | None:
    planned = next((one for one in plan.stages if one.stage is stage), None)
    if planned is None or planned.is_reused:
        return 0.0
    if planned.time is None or planned.time.value is None:
        return None
    num_gpus = stage_profile(plan.profile, stage).num_gpus if plan.profile.num_gpus else 1
    return num_gpus * planned.time.value / _HOUR_S


def _settings(arm: Arm) -> str:
    """The keys that the arm sets; of many, the first."""
    leaves = [leaf for key, value in arm.settings.items() for leaf in flat(value, key).items()]
    shown = ", ".join(f"{key} {str(value)[:_LONGEST]}" for key, value in leaves[:_MOST_SHOWN])
    more = f", and {len(leaves) - _MOST_SHOWN} more" if len(leaves) > _MOST_SHOWN else ""
    return f"{shown}{more}" or "as the run that all start from"
