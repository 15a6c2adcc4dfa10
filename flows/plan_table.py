"""The plan in a table at its end: one line for each stage, so that the run can be seen at a glance."""

from containers.contracts.names import StageName
from flows.plan import RunPlan
from flows.plan_figures import Figure, StagePlan
from flows.plan_limits import memory_bytes
from flows.plan_quantities import count_text, duration_text, operations_text, size_text
from tasks.stage_key import stage_profile

_HEAD = ("stage", "result", "steps", "tokens", "work", "memory", "disk", "time")
_NOTHING = "-"
_UNKNOWN = "?"


def table_lines(plan: RunPlan) -> list[str]:
    """The table, its last line saying what the columns are and that they are estimated."""
    rows = [_HEAD, *(_row(stage, plan) for stage in plan.stages)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join(cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(columns))
        for columns in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    where = "of one GPU, or of the host for a stage that has none" if plan.profile.num_gpus else "of the host"
    return [
        *(line.rstrip() for line in lines),
        f"All but `result` is estimated, as said below; {_UNKNOWN} is not known yet; memory is that {where}.",
    ]


def _row(stage: StagePlan, plan: RunPlan) -> tuple[str, ...]:
    tokens = next((figure for figure in stage.figures if figure.name == "tokens"), None)
    memory = size_text(memory_bytes(stage)) if stage.memory else _NOTHING
    if stage.memory and not stage_profile(plan.profile, stage.stage).num_gpus and stage.host_memory is not None:
        memory = _text(stage.host_memory)
    if stage.is_reused:
        return (stage.stage.value, "reused", *(_NOTHING for _ in _HEAD[2:]))
    return (
        stage.stage.value,
        _UNKNOWN if stage.cached.startswith("not known") else "runs",
        count_text(stage.schedule.num_steps) if stage.schedule else _UNKNOWN if stage.batch else _NOTHING,
        _text(tokens),
        _text(stage.work),
        memory,
        _text(stage.disk),
        _NOTHING if stage.stage is StageName.CHECK_SYSTEM else _text(stage.time),
    )


def _text(figure: Figure | None) -> str:
    if figure is None:
        return _NOTHING
    if figure.value is None:
        return _UNKNOWN
    words = {"bytes": size_text, "s": duration_text, "FLOP": operations_text}.get(figure.unit, count_text)
    return words(figure.value)
