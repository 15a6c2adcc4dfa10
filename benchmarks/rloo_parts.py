"""Time the parts of an RLOO step, generation included: stock TRL beside ours. Figures: rloo_parts.md.

    python -m benchmarks.rloo_parts [--new-tokens 128] [--prompts 2] [--seeds 1 2 3] [--rounds 2] [--write]

Models, prompts and settings of TRL are those of rloo_speed. Here each way samples completions, four of a prompt, each
of exactly that many tokens, so that every way computes as many. Their texts differ, since engines use random numbers
differently.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from benchmarks.provenance import commit
from benchmarks.rloo_inputs import draw_folder, load, make_trainer, prepare
from benchmarks.rloo_ways import COMPLETIONS, DEFAULT, OURS, STEP_PROMPTS, every_way, settings
from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    Runs,
    Tried,
    alternate,
    in_its_own_process,
    peak_bytes,
    ratio,
    tried,
)
from benchmarks.speed_table import add_options, check_seeds, circumstances, median, spread_line, write_part
from containers.algorithms.policy_rollouts import PolicyRollouts
from containers.algorithms.policy_step import PolicyStep
from containers.models.trial import evaluating
from containers.packing.logps import causal_of
from containers.rollouts.generate import Completion, padded_rows, turn_end_ids, whole_distribution

_MODULE = "benchmarks.rloo_parts"
_FIGURES = Path(__file__).with_suffix(".md")
_GENERATION, _REWARD, _OLD, _REFERENCE = "generation", "reward model", "old log-probabilities", "reference"
_UPDATE, _REST = "update: forward, backward", "all else (optimizer, padding, figures)"
_PARTS = (_GENERATION, _REWARD, _OLD, _REFERENCE, _UPDATE, _REST)


class Fixed(PolicyRollouts):
    """Our rollouts, each completion of which has exactly the maximum number of tokens."""

    def written(self, policy: Any, places: Sequence[int]) -> list[Completion]:
        """Sample completions that cannot end before."""
        longest, causal = self.config.max_completion_length, causal_of(policy)
        settings = GenerationConfig(
            max_new_tokens=longest,
            min_new_tokens=longest,
            eos_token_id=list(turn_end_ids(causal, self.tokenizer)),
            pad_token_id=self.tokenizer.pad_token_id,
            do_sample=True,
            top_k=0,
        )
        prompts = [self.prompts[place].token_ids for place in places]
        ids, mask = padded_rows(prompts, self.tokenizer.pad_token_id, side="left", device=causal.device)
        with self.writing(policy), evaluating(causal), whole_distribution(causal):
            made = causal.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
        tails = made[:, ids.shape[1] :].tolist()
        return [
            Completion(prompt, tuple(tail), text=self.tokenizer.decode(tail, skip_special_tokens=True), ended=False)
            for prompt, tail in zip(prompts, tails, strict=True)
        ]


class _Clock:
    """Seconds of each part; a part does not include other parts inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block as that part."""
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def _book(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def watch(self, owner: Any, method: str, name: Callable[..., str]) -> None:
        """Count this method's time as the part that `name` returns for its arguments."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name(*args, **kwargs)):
                return inner(*args, **kwargs)

        setattr(owner, method, timed)


def main() -> int:
    """Print a table."""
    transformers.utils.logging.disable_progress_bar()
    given, measured = _arguments(), commit()
    if given.measure:
        print(json.dumps(_measure(given.measure, Path(given.folder), new_tokens=given.new_tokens)))
        return 0
    with tempfile.TemporaryDirectory(prefix="rloo-parts-") as name:
        folder = Path(name)
        lengths = prepare(folder, data=None, count=given.prompts, seeds=[CALIBRATION_SEED, *given.seeds])
        prompts = [length for seed in given.seeds for length, _ in lengths[seed]]
        measure = in_its_own_process(_MODULE, ["--new-tokens", str(given.new_tokens)])
        peer = tried(list(settings()), folder=draw_folder(folder, CALIBRATION_SEED), measure=measure)
        folders = {seed: draw_folder(folder, seed) for seed in given.seeds}
        found = alternate([DEFAULT, peer.best, OURS], folders=folders, rounds=given.rounds, measure=measure)
    text = _table(found, peer, prompts=prompts, given=given)
    print(text)
    if given.write:
        title = "Where the time of an RLOO step goes"
        write_part(_FIGURES, text, module=_MODULE, title=title, heading="Letters", measured=measured)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens of every completion")
    parser.add_argument("--prompts", type=int, default=STEP_PROMPTS, help=f"of each draw, {STEP_PROMPTS} a step")
    add_options(parser, page=_FIGURES)
    parser.set_defaults(seeds=[1, 2, 3])
    parser.add_argument("--measure", choices=list(every_way()), help=argparse.SUPPRESS)
    given = parser.parse_args()
    check_seeds(parser, given.seeds)
    return given


def _measure(way: str, folder: Path, *, new_tokens: int) -> dict[str, Any]:
    """Return the seconds of all steps, in all and by part, and memory beyond the loaded models."""
    tasks, tokenizer, policy, judge = load(folder)
    drawn: dict[str, Any] = {"max_completion_length": new_tokens, "generation_kwargs": {"min_new_tokens": new_tokens}}
    trainer: Any = make_trainer(way, policy, judge, tokenizer, tasks, folder, whole=False, **drawn)
    clock = _Clock()
    if way == OURS:
        trainer.rollouts = Fixed(**vars(trainer.rollouts))
        clock.watch(trainer.rollouts, "written", lambda *_: _GENERATION)
        clock.watch(trainer.rollouts.reward.reward, "scores", lambda *_: _REWARD)
        clock.watch(trainer.rollouts, "next_batch", lambda *_: _REST)
        clock.watch(PolicyStep, "_logps", lambda _, model, *__: _pass_name(model))
        clock.watch(PolicyStep, "update", lambda *_: _UPDATE)
    else:
        clock.watch(trainer, "_generate_single_turn", lambda *_: _GENERATION)
        clock.watch(trainer, "_calculate_rewards", lambda *_: _REWARD)
        clock.watch(trainer, "_get_per_token_logps_and_entropies", _pass_name)
        clock.watch(trainer, "_generate_and_score_completions", lambda *_: _REST)
    clock.watch(trainer, "training_step", lambda *_, **__: _REST if way == OURS else _UPDATE)
    before, start = peak_bytes(), time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    parts = {name: clock.seconds[name] for name in _PARTS}
    parts[_REST] += seconds - sum(parts.values())
    lengths = [entry["completion_length" if way == OURS else "completions/mean_length"] for entry in _steps(trainer)]
    if set(lengths) != {float(new_tokens)}:
        raise SystemExit(f"{way} wrote completions of {lengths} tokens on average, and {new_tokens} were wanted.")
    return {"seconds": seconds, "memory": peak_bytes() - before, "parts": parts}


def _steps(trainer: Any) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def _pass_name(model: Any, *_: Any, **__: Any) -> str:
    """Return which of the passes over a batch this is."""
    if torch.is_grad_enabled():
        return _UPDATE
    is_reference = any(getattr(part, "disable_adapters", False) is True for part in model.modules())
    return _REFERENCE if is_reference else _OLD


def _table(found: Runs, peer: Tried, *, prompts: list[int], given: argparse.Namespace) -> str:
    ways, seeds = list(found), given.seeds
    lines = [
        f"{given.prompts} prompts a draw (random letters), of {min(prompts):,} to {max(prompts):,} tokens, with "
        f"{COMPLETIONS} completions of {given.new_tokens} tokens each, {COMPLETIONS * STEP_PROMPTS} completions a "
        f"step, adapters of rank 16, seeds {' '.join(map(str, seeds))}; "
        f"{circumstances(given.rounds, draws=len(seeds))}",
        "",
        peer.line("TRL without checkpointing"),
        "",
        "Seconds of a draw, medians over draws and rounds, and their share of the way's whole. "
        f"{spread_line(len(seeds))}",
        "",
        f"| part | {' | '.join(ways)} |",
        f"| --- |{' ---: |' * len(ways)}",
    ]
    for part in _PARTS:
        cells = []
        for way in ways:
            seconds = median([run["parts"] for run in found[way]], part)
            cells.append(f"{seconds:.1f} ({seconds / median(found[way], 'seconds'):.0%})")
        lines.append(f"| {part} | {' | '.join(cells)} |")
    wholes = [f"{median(found[way], 'seconds'):.1f}" for way in ways]
    lines.append(f"| **whole** | {' | '.join(wholes)} |")
    faster = [ratio(found, way, ours=OURS) for way in ways if way != OURS]
    lines.append(f"| ours is faster | {' | '.join([*map(str, faster), ''])} |")
    lines.append(f"| … by the clock | {' | '.join([*(found.clock_shown for found in faster), ''])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
