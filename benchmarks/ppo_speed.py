"""What PPO's critic costs: our PPO step beside our RLOO step, and a rollout saved: python -m benchmarks.ppo_speed

Both take the same draws of prompts with given completions, the same policy and the same reward model, turn about, each
in its own process, as in `benchmarks.rloo_speed`; there is no generation. PPO computes beside that the policy's own
log-probabilities before its update (its KL is in each token's reward), and the critic forward and backward.

The checkpoint's part is a rollout of 1,024 completions with all that PPO knows of their tokens, saved as a training
saves it, beside a file of nothing.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.provenance import PROJECT, commit
from benchmarks.rloo_inputs import ADAPTERS, draw_folder, prepare
from benchmarks.rloo_ways import ANSWER_TOKENS, LENGTHS, OURS, PPO, STEP_PROMPTS
from benchmarks.speed_ratios import alternate, in_its_own_process, ratio
from benchmarks.speed_table import circumstances, write_part
from containers.contracts.schedule import Minibatches
from containers.rollouts.rollout import Rollout, StepBatch

_PAGE = PROJECT / "benchmarks" / "rloo_speed.md"
_MODULE = "benchmarks.ppo_speed"
_MOST_TIMES, _MOST_MIB, _MOST_S = 1.8, 20.0, 1.0
_COMPLETIONS, MIB = 1024, 2**20


def main() -> int:
    """Measure, print and perhaps write; 1 if something costs more than is wanted."""
    arguments, measured = _arguments(), commit()
    with tempfile.TemporaryDirectory(prefix="ppo-speed-") as name:
        folder = Path(name)
        prepare(folder, data=None, count=arguments.prompts, seeds=arguments.seeds)
        folders = {seed: draw_folder(folder, seed) for seed in arguments.seeds}
        measure = in_its_own_process("benchmarks.rloo_speed", [])
        found = alternate([PPO, OURS], folders=folders, rounds=arguments.rounds, measure=measure)
        size, seconds = _saved(folder)
    longer = ratio(found, PPO, ours=OURS)
    whole = {way: sum(run["seconds"] for run in runs) / arguments.rounds for way, runs in found.items()}
    memory = {way: max(run["memory"] for run in runs) / MIB for way, runs in found.items()}
    text = "\n".join(
        (
            f"{arguments.prompts} prompts a draw with 4 completions each, {STEP_PROMPTS} a step (random letters; "
            f"{LENGTHS}), adapters of rank {ADAPTERS.r}, seeds {' '.join(map(str, arguments.seeds))}; "
            f"{circumstances(arguments.rounds, draws=len(arguments.seeds))}",
            "",
            "| step | seconds, all draws | memory added, MiB | takes longer than RLOO | by the clock |",
            "| --- | ---: | ---: | ---: | ---: |",
            f"| PPO | {whole[PPO]:.1f} | {memory[PPO]:,.0f} | {longer} | {longer.clock_shown} |",
            f"| RLOO | {whole[OURS]:.1f} | {memory[OURS]:,.0f} |  |  |",
            "",
            f"A rollout of {_COMPLETIONS:,} completions of {ANSWER_TOKENS[0]} to {ANSWER_TOKENS[1]} tokens in a "
            f"checkpoint: {size / MIB:.1f} MiB, {seconds:.2f} s (wanted: at most {_MOST_MIB:g} MiB, {_MOST_S:g} s).",
        )
    )
    print(text)
    if arguments.write:
        write_part(_PAGE, text, module=_MODULE, title="RLOO step", heading="PPO beside RLOO", measured=measured)
    return 0 if longer.median <= _MOST_TIMES and size <= _MOST_MIB * MIB and seconds <= _MOST_S else 1


def _saved(folder: Path) -> tuple[int, float]:
    """Return bytes and seconds of a rollout in a checkpoint, the median of five."""
    dice = random.Random(7)  # noqa: S311 - lengths, not secrets
    lengths = [dice.randint(*ANSWER_TOKENS) for _ in range(_COMPLETIONS)]
    torch.manual_seed(7)

    def rows() -> list[torch.Tensor]:
        return [torch.randn(length) for length in lengths]

    batch = StepBatch(
        prompts=[[1]] * _COMPLETIONS,
        completions=[torch.randint(0, 150_000, (length,)).tolist() for length in lengths],
        first_row=0,
        rewards=torch.randn(_COMPLETIONS, dtype=torch.float64),
        lengths=torch.tensor(lengths),
        ended=torch.ones(_COMPLETIONS, dtype=torch.bool),
        takes_part=torch.ones(_COMPLETIONS, dtype=torch.bool),
        divides=torch.ones(_COMPLETIONS, dtype=torch.bool),
        **{name: rows() for name in ("reference", "old", "advantages", "values", "returns")},  # type: ignore[arg-type]
    )
    rollout, file = Rollout(batch, Minibatches(8, 1), seed="7"), folder / "rollout.safetensors"
    times = []
    for _ in range(5):
        began = time.perf_counter()
        rollout.save(file)
        times.append(time.perf_counter() - began)
    return file.stat().st_size, median(times)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=4, help=f"of each draw, {STEP_PROMPTS} a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="a draw of data for each")
    parser.add_argument("--rounds", type=int, default=2, help="of each draw")
    parser.add_argument("--write", action="store_true", help="write the output into rloo_speed.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
