"""Training steps and generation beside TRL and transformers, in one process: the programs for processors, on a GPU."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import generation_speed, rloo_inputs, rloo_speed, rloo_ways, train_speed
from benchmarks.speed_inputs import random_pairs, save_reward_model
from benchmarks.speed_place import Place
from benchmarks.speed_ratios import Runs, alternate, ratio

Report = Callable[[dict[str, Any]], None]
_SEEDS = (1, 2)
_WARM_UP = 0
_GIB = 1024**3


def reward_model(place: Place, report: Report, *, pairs: int, rounds: int) -> None:
    """A step on pairs: TRL at its defaults, two settings that may be its best, and packs."""
    ways = [train_speed.DEFAULT, *train_speed.settings_of(4, 8), train_speed.OURS]
    with tempfile.TemporaryDirectory(prefix="gpu-speed-") as name:
        folder = Path(name)
        save_reward_model(folder / "model", data=None, place=place)
        for seed in (_WARM_UP, *_SEEDS):
            train_speed.prepare(folder, random_pairs(pairs, seed=seed), draw=seed)
        found = _turn_about(
            ways, train_speed.draw_folder, folder, partial(_way, train_speed.measure_way, place), rounds
        )
    losses = {way: [run["loss"] for run in runs] for way, runs in found.items()}
    _say(report, "reward model's step", found, ours=train_speed.OURS, more={"losses": losses})


def rloo(place: Place, report: Report, *, prompts: int, rounds: int) -> None:
    """A policy's step without generation: TRL at its defaults, two settings that may be its best, and packs."""
    ways = [rloo_ways.DEFAULT, *rloo_ways.whole_prompts(), rloo_ways.OURS]
    with tempfile.TemporaryDirectory(prefix="gpu-speed-") as name:
        folder = Path(name)
        rloo_inputs.prepare(folder, data=None, count=prompts, seeds=[_WARM_UP, *_SEEDS], place=place)
        measure = partial(_way, partial(rloo_speed.measure_way, whole=False), place)
        found = _turn_about(ways, rloo_inputs.draw_folder, folder, measure, rounds)
    norms = {way: [run["gradients"] for run in runs] for way, runs in found.items()}
    _say(report, "policy's step without generation", found, ours=rloo_ways.OURS, more={"gradient norms": norms})


def generation(place: Place, report: Report, *, prompts: int, new_tokens: int, rounds: int) -> None:
    """Four completions of each prompt: transformers as TRL calls it, all prompts at once, and with shared prompts."""
    ways = [generation_speed.THEIRS, generation_speed.setting(4, None), generation_speed.OURS]
    with tempfile.TemporaryDirectory(prefix="gpu-speed-") as name:
        folder = Path(name)
        generation_speed.prepare(folder, count=prompts, seeds=[_WARM_UP, *_SEEDS], place=place)
        measure = partial(_way, partial(generation_speed.measure_way, new_tokens=new_tokens), place)
        found = _turn_about(ways, rloo_inputs.draw_folder, folder, measure, rounds)
    written = prompts * generation_speed.K * new_tokens
    rates = {way: [round(written / run["seconds"]) for run in runs] for way, runs in found.items()}
    same = {way: [_equal(run, found) for run in runs] for way, runs in found.items()}
    more = {"tokens per second": rates, "share of completions equal to ours": same}
    _say(report, "generation", found, ours=generation_speed.OURS, more=more)


def _equal(run: Mapping[str, Any], found: Runs) -> float:
    """Return the share of a run's completions that equal ours of its draw, token by token."""
    ours = next(one for one in found[generation_speed.OURS] if one["draw"] == run["draw"])["completions"]
    pairs = [
        (a, b)
        for of_one, of_other in zip(run["completions"], ours, strict=True)
        for a, b in zip(of_one, of_other, strict=False)
    ]
    return sum(int(a == b) for a, b in pairs) / len(pairs)


def _way(measure: Callable[..., dict[str, Any]], place: Place, name: str, folder: Path) -> dict[str, Any]:
    run = measure(name, folder, place=place)
    print(f"{folder.name}: {name}: {run['seconds']:.2f} s, {run['memory'] / _GIB:.2f} GiB", flush=True)
    return run


def _turn_about(
    ways: Sequence[str],
    draw_folder: Callable[[Path, int], Path],
    folder: Path,
    measure: Callable[[str, Path], dict[str, Any]],
    rounds: int,
) -> Runs:
    """Measure the ways turn about, after each was run once on a draw that does not count."""
    for way in ways:
        measure(way, draw_folder(folder, _WARM_UP))
    return alternate(ways, folders={seed: draw_folder(folder, seed) for seed in _SEEDS}, rounds=rounds, measure=measure)


def _say(report: Report, what: str, found: Runs, *, ours: str, more: Mapping[str, Mapping[str, Any]]) -> None:
    for way, runs in found.items():
        compared = {} if way == ours else {"ours is faster": str(ratio(found, way, ours=ours))}
        report(
            {
                "what": what,
                "way": way,
                "seconds": [round(run["seconds"], 3) for run in runs],
                "memory_gib": round(max(run["memory"] for run in runs) / _GIB, 2),
                **compared,
                **{name: values[way] for name, values in more.items()},
            }
        )
