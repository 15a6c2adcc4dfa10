"""Time a step of DPO and of fine-tuning: stock TRL beside packs: python -m benchmarks.offline_speed KIND

The same rows, weights (random, Qwen3 of about 25M parameters beside its embeddings) and one optimizer step over all
rows of a draw, turn about, each time in its own process, whose peak memory is measured. All in float32. KIND is

- `dpo`: adapters of rank 16; the reference is precomputed in every way but TRL's defaults, which compute it in the step
- `sft`: every weight, one completion to a prompt
- `sft-both`: every weight, two completions to a prompt

The ways are TRL at its defaults (gradient checkpointing, all rows in one padded batch); TRL at its best on this
machine, without checkpointing: 1, 2, 4 or 8 rows a batch, whichever is the fastest on a draw that is not compared; for
fine-tuning also TRL's packing; and ours.

    --data FOLDER    real rows and the real vocabulary of the shared data, instead of random text
    --made           rows like these, made with a seed, for a vocabulary as wide (`made_data`)
    --write          write the output into its part of benchmarks/offline_speed.md
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from benchmarks.made_data import folder_of
from benchmarks.offline_ways import DEFAULT, OURS, PACKING, SETTINGS, examples_of, our_trainer, peers_trainer, tokens_of
from benchmarks.provenance import commit
from benchmarks.speed_inputs import ConversationPair, pairs_of, save_reward_model
from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    Runs,
    Tried,
    alternate,
    in_its_own_process,
    peak_bytes,
    ratio,
    results_by_draw,
    tried,
)
from benchmarks.speed_table import (
    add_options,
    add_rows_options,
    check_seeds,
    chosen_rows,
    circumstances,
    spread_line,
    table,
    write_part,
)
from containers.algorithms.offline_step import Example

MODULE = "benchmarks.offline_speed"
_PAGE = Path(__file__).with_suffix(".md")
_BEST = "TRL at its best"
# Kind → by how many times ours must be faster than each. A row a batch has no padding, so where each prompt has one
# completion, there is little to win on a CPU; it is compared all the same.
_WANTED = {
    "dpo": {DEFAULT: 6.0, _BEST: 1.9},
    "sft": {DEFAULT: 3.0, PACKING: 1.2},
    "sft-both": {DEFAULT: 3.0, PACKING: 2.0},
}
_SAME = 1e-3
_PAIRS = 8


def main() -> int:
    """Print a table; return 1 if losses differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    given, measured = _arguments(), commit()
    if given.measure:
        print(json.dumps(_measure(given.kind, given.measure, Path(given.folder))))
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offline-speed-")))
        data = stack.enter_context(folder_of(given.data)) if given.data or given.made else None
        _save_policy(folder, data)
        seeds = [CALIBRATION_SEED, *given.seeds]
        draws = {
            seed: _prepare(folder, given.kind, pairs_of(data, given.pairs, seed=seed), draw=seed) for seed in seeds
        }
        folders = {seed: folder / f"draw-{seed}" for seed in seeds}
        measure = in_its_own_process(MODULE, [given.kind])
        peer = tried(SETTINGS, folder=folders.pop(CALIBRATION_SEED), measure=measure)
        ways = [DEFAULT, peer.best, *([PACKING] if given.kind != "dpo" else []), OURS]
        found = alternate(ways, folders=folders, rounds=given.rounds, measure=measure, once=(DEFAULT,))
    compared = {seed: draws[seed] for seed in given.seeds}
    text = _table(given, compared, found, peer)
    print(text)
    if given.write:
        rows, _ = chosen_rows(given, letters="")
        write_part(
            _PAGE, text, module=MODULE, title="Steps on given completions", heading=f"{given.kind}: {rows.lower()}",
            measured=measured,
        )  # fmt: skip
    names = {_BEST: peer.best}
    fast = all(
        ratio(found, names.get(name, name), ours=OURS).median >= least for name, least in _WANTED[given.kind].items()
    )
    return 0 if _spread(found, peer) <= _SAME and fast else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=list(_WANTED))
    add_rows_options(parser)
    parser.add_argument(
        "--pairs", type=int, default=_PAIRS, help=f"of each draw, all in one step; {_PAIRS} unless given"
    )
    add_options(parser, page=_PAGE)
    parser.add_argument("--measure", choices=[DEFAULT, *SETTINGS, PACKING, OURS], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pairs % _PAIRS:
        parser.error(f"--pairs {given.pairs}: TRL's batches have up to {_PAIRS} rows; give a multiple of it.")
    check_seeds(parser, given.seeds)
    return given


def _save_policy(folder: Path, data: Path | None) -> None:
    save_reward_model(folder / "reward", data=data)
    torch.manual_seed(1)
    Qwen3ForCausalLM(AutoConfig.from_pretrained(folder / "reward")).save_pretrained(folder / "policy")
    AutoTokenizer.from_pretrained(folder / "reward").save_pretrained(folder / "policy")


def _prepare(folder: Path, kind: str, pairs: Sequence[ConversationPair], *, draw: int) -> list[Example]:
    """Write the pairs as messages and as tokens for the processes that measure; return the examples."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    rows = [{"prompt": a[:-1], "chosen": a[-1:], "rejected": b[-1:]} for a, b in pairs]
    place = folder / f"draw-{draw}"
    place.mkdir()
    (place / "rows.json").write_text(json.dumps(rows))
    return examples_of(kind, tokenizer, rows)


def _measure(kind: str, way: str, folder: Path) -> dict[str, float]:
    """Return seconds of the step, loss, norm of the gradient, and peak memory beyond the loaded model."""
    rows = json.loads((folder / "rows.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder.parent / "policy")
    model = AutoModelForCausalLM.from_pretrained(folder.parent / "policy", dtype=torch.float32)
    model(input_ids=torch.tensor([[5] * 64]))  # warm up threads and allocator
    trainer: Any = (
        our_trainer(kind, model, tokenizer, rows, folder)
        if way == OURS
        else peers_trainer(kind, model, tokenizer, rows, folder, way=way)
    )
    before = peak_bytes()
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    (step,) = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return {
        "seconds": seconds,
        "loss": float(step["loss"]),
        "norm": float(step["grad_norm"]),
        "memory": peak_bytes() - before,
    }


def _spread(found: Runs, peer: Tried) -> float:
    """How far apart loss and gradient of a draw are, relative to the largest."""
    worst = 0.0
    for runs in results_by_draw(found, peer):
        for figure in ("loss", "norm"):
            values = [run[figure] for run in runs]
            worst = max(worst, (max(values) - min(values)) / max(values))
    return worst


def _table(given: argparse.Namespace, draws: Mapping[int, list[Example]], found: Runs, peer: Tried) -> str:
    _, data = chosen_rows(given, letters="prompts 200 to 2,000 tokens, answers 100 to 600")
    ways = [name for name in found if name != OURS]
    limits = {way: [tokens_of(own, way) / tokens_of(own, OURS) for own in draws.values()] for way in ways}

    def cells(name: str) -> tuple[list[str], list[str]]:
        return [f"{sum(tokens_of(own, name) for own in draws.values()):,}"], []

    lines = [
        f"{given.pairs} pairs a draw, all in one step ({data}), seeds {' '.join(map(str, draws))}; "
        f"{circumstances(given.rounds, draws=len(draws))}",
        f"Loss and norm of the gradient of a draw differ by {_spread(found, peer):.1e} of them at most.",
        "",
        peer.line("TRL without checkpointing"),
        *(
            f"Tokens computed, of ours, by {way}: {', '.join(f'{value:.2f}' for value in sorted(of_way))}."
            for way, of_way in limits.items()
        ),
        "",
        spread_line(len(draws), once=(DEFAULT,) if given.rounds > 1 else ()),
        "",
        *table(found, ours=OURS, before=["tokens computed"], after=[], cells=cells),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
