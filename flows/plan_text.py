"""A plan as text for the terminal; pure. Every number stands beside what it is worth."""

from containers.contracts.names import StageName
from flows.plan import RunPlan
from flows.plan_figures import Figure, StagePlan

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NAME_WIDTH = 36


def render_plan(plan: RunPlan) -> str:
    """The whole plan: head, one block per stage, sums, assumptions."""
    profile = plan.profile
    devices = f"{profile.num_gpus} GPU(s) of {profile.gpu_memory_gib:g} GiB" if profile.num_gpus else "CPU"
    lines = [
        f"Plan of {plan.name} ({plan.config_path})",
        f"  profile   {profile.name}: {devices}, {profile.num_processes} rank(s), {profile.precision}",
        f"  model     {plan.model}",
        f"  dataset   {plan.dataset}",
        "",
    ]
    for number, stage in enumerate(plan.stages, start=1):
        lines += [*_stage_lines(number, stage, plan=plan), ""]
    lines.append(f"In all: {_seconds(plan.seconds)} (estimated), {_size(plan.disk_bytes)} of disk (estimated).")
    if any(stage.time is not None and stage.time.value is None for stage in plan.stages):
        lines.append("Stages whose time is unknown are not in these sums.")
    lines += [f"WARNING: {warning}" for warning in plan.warnings]
    lines += ["Assumed:", *(f"  - {assumption}" for assumption in plan.assumptions)]
    return "\n".join(lines)


def figure_text(figure: Figure) -> str:
    """Value, unit, worth: `180 steps (estimated)`, `at most 2,817 rows`, `unknown before the data is read`."""
    if figure.value is None:
        return "unknown before the data is read"
    note = f"; {figure.note}" if figure.note else ""
    if figure.origin == "at most":
        return f"at most {_quantity(figure)}" + (f" ({figure.note})" if figure.note else "")
    return f"{_quantity(figure)} ({figure.origin}{note})"


def _stage_lines(number: int, stage: StagePlan, *, plan: RunPlan) -> list[str]:
    lines = [f"{number}. {stage.stage.value}   [{stage.cached}]"]
    if stage.batch is not None:
        batch = stage.batch
        lines.append(
            _line(
                "global batch",
                f"{batch.global_batch_size} = {batch.per_device_batch_size} per device x {batch.num_processes} rank(s) "
                f"x {batch.gradient_accumulation_steps} accumulated (exact)",
            )
        )
    lines += [_line(figure.name, figure_text(figure)) for figure in stage.figures]
    if stage.schedule is not None:
        saves = f"every {stage.schedule.save_steps} steps"
        # The policy is judged by the next stage, not while it trains.
        if stage.stage is not StageName.TRAIN_POLICY:
            lines.append(_line("evaluates", f"every {stage.schedule.eval_steps} steps"))
            saves += ", and at each evaluation that is the best so far"
        lines.append(_line("saves", saves))
    if stage.memory:
        lines += _memory_lines(stage, plan=plan)
    costs = (stage.host_memory, stage.disk, stage.time)
    return lines + [_line(figure.name, figure_text(figure)) for figure in costs if figure is not None]


def _memory_lines(stage: StagePlan, *, plan: RunPlan) -> list[str]:
    total = sum(figure.value or 0 for figure in stage.memory)
    where, limit = ("memory per GPU", plan.profile.gpu_memory_gib) if plan.profile.num_gpus else ("memory", 0)
    text = f"{_size(total)} (estimated)"
    if limit:
        text += f" of {limit:g} GiB" + (": MORE THAN THE GPU HAS" if total > limit * 1024**3 else "")
    parts = [_line(f"  {figure.name}", figure_text(figure)) for figure in stage.memory]
    return [_line(where, text), *parts]


def _line(name: str, text: str) -> str:
    return f"     {name:<{_NAME_WIDTH}}{text}"


def _quantity(figure: Figure) -> str:
    value = figure.value or 0
    if figure.unit == "bytes":
        return _size(value)
    if figure.unit == "s":
        return _seconds(value)
    if figure.unit == "parameters":
        return _parameters(value)
    return f"{value:,.0f} {figure.unit}"


def _parameters(value: float) -> str:
    for size, letter, digits in ((1e9, "B", 2), (1e6, "M", 1), (1e3, "K", 1)):
        if value >= size:
            return f"{value / size:.{digits}f}{letter} = {value:,.0f}"
    return f"{value:,.0f}"


def _size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit < 2 else f"{count:.1f} {_UNITS[unit]}"


def _seconds(count: float) -> str:
    if count < 90:
        return f"{count:.0f} s"
    if count < 5400:
        return f"{count / 60:.0f} min"
    return f"{count / 3600:.1f} h"
