"""Draws the pipeline as docs/images/dag.svg, from the table of stages: python docs/make_dag.py"""

from collections.abc import Iterator
from pathlib import Path

from containers.contracts.names import CONTAINER_STAGES, OVER_RUNS, StageName
from containers.contracts.pipeline import STAGE_FACTS, Devices

PICTURE = Path(__file__).parent / "images" / "dag.svg"

_WIDTH, _HEIGHT = 1676, 330
_BOX, _TALL, _STEP = 178, 56, 198
_LEFT, _TOP, _BELOW = 20, 28, 158
_GATE = 26
_COLUMNS = 8
_STAGES = [stage for stage in StageName if stage not in OVER_RUNS]
_DEVICES = {
    Devices.NONE: "CPU",
    Devices.ONE_GPU: "one GPU",
    Devices.ALL_GPUS: "all GPUs",
    Devices.ALL_RANKS: "all GPUs",
}
_STYLE = """
  text { font-family: system-ui, "DejaVu Sans", sans-serif; fill: #1f2933; text-anchor: middle }
  .name { font-size: 12.8px; font-weight: 600 }
  .small { font-size: 12px; fill: #52606d }
  .note { font-size: 13px; text-anchor: start }
  .box { fill: #e3f0fb; stroke: #2a6f97; stroke-width: 1.5 }
  .outside { fill: #ffffff }
  .optional { stroke-dasharray: 6 4 }
  .gate { fill: #fff3d6; stroke: #b7791f; stroke-width: 1.5 }
  .arrow { fill: none; stroke: #52606d; stroke-width: 1.8; marker-end: url(#head) }
"""
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#52606d"/></marker></defs>'
)


def svg() -> str:
    """The picture: stages in order, eight to the right and the rest back, and the gates behind those that judge."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{" → ".join(_STAGES)}">',
        f"<style>{_STYLE}</style>{_HEAD}",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="10" fill="#ffffff"/>',
        *_stages(),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _stages() -> Iterator[str]:
    forward, back = _STAGES[:_COLUMNS], _STAGES[_COLUMNS:]
    gap, y = _STEP - _BOX, _middle(_TOP)
    x = _LEFT
    for place, stage in enumerate(forward):
        if place:
            yield _arrow(x - gap, y, x, y)
        yield from _box(stage, x, _TOP)
        x += _STEP
        if STAGE_FACTS[stage].judges:
            yield _arrow(x - gap, y, x, y)
            yield from _gate(x + _GATE, y)
            x += 2 * _GATE + gap
    from_x, y = x - gap, _middle(_BELOW)
    yield _arrow(from_x - _GATE, _TOP + _TALL - (_TALL // 2 - _GATE), from_x - _GATE, _BELOW)
    for place, stage in enumerate(back):
        right = from_x - gap if place else from_x
        if place:
            yield _arrow(from_x, y, right, y)
        yield from _box(stage, right - _BOX, _BELOW)
        from_x = right - _BOX
        if STAGE_FACTS[stage].judges:
            x = from_x - gap - _GATE
            yield _arrow(from_x, y, x + _GATE, y)
            yield from _gate(x, y)
            from_x = x - _GATE


def _middle(top: int) -> int:
    return top + _TALL // 2


def _box(stage: StageName, x: int, y: int) -> Iterator[str]:
    facts = STAGE_FACTS[stage]
    kinds = ["box"]
    if stage not in CONTAINER_STAGES:
        kinds.append("outside")
    if facts.is_optional:
        kinds.append("optional")
    yield f'<rect class="{" ".join(kinds)}" x="{x}" y="{y}" width="{_BOX}" height="{_TALL}" rx="7"/>'
    yield f'<text class="name" x="{x + _BOX // 2}" y="{y + 25}">{stage}</text>'
    yield f'<text class="small" x="{x + _BOX // 2}" y="{y + 44}">{_DEVICES[facts.devices]}</text>'


def _gate(x: int, y: int) -> Iterator[str]:
    corners = " ".join(f"{x + dx},{y + dy}" for dx, dy in ((0, -_GATE), (_GATE, 0), (0, _GATE), (-_GATE, 0)))
    yield f'<polygon class="gate" points="{corners}"/>'
    yield f'<text class="small" x="{x}" y="{y + 4}">gate</text>'


def _arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    return f'<path class="arrow" d="M{x},{y} L{to_x},{to_y}"/>'


def _legend() -> Iterator[str]:
    notes = (
        ("box", "a container of its own, with its /dev/shm, limits and GPUs", 470),
        ("box optional", "only where the run wants it", 270),
    )
    y, x = 262, _LEFT
    for kinds, text, width in notes:
        yield f'<rect class="{kinds}" x="{x}" y="{y}" width="26" height="16" rx="3"/>'
        yield f'<text class="note" x="{x + 36}" y="{y + 13}">{text}</text>'
        x += width
    yield f'<polygon class="gate" points="{x + 8},{y - 2} {x + 18},{y + 8} {x + 8},{y + 18} {x - 2},{y + 8}"/>'
    yield f'<text class="note" x="{x + 28}" y="{y + 13}">only a model that passes goes on</text>'
    yield (
        f'<text class="note" x="{_LEFT}" y="{y + 48}">Prefect starts, retries and resumes the stages. '
        "MLflow has their curves, tables and lineage. A finished stage is reused.</text>"
    )


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
    print(PICTURE)
