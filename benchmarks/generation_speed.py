"""Completions of one prompt from one prefill, beside transformers' generate: python -m benchmarks.generation_speed

The same prompts of 200 to 2,000 tokens with four completions each, of 64 and of 256 tokens, greedy, by the policy of
benchmarks/rloo_speed.py with its adapters on (random weights, Qwen3 of about 25M parameters beside its embeddings,
float32). The ways take turns on several draws of prompts, each time in its own process, whose peak memory is measured
as well:

- transformers' generate as TRL calls it: each prompt once per completion, 2 prompts at once, padded on the left
- the same at its best on this machine: 1, 2 or 4 prompts at once, sorted by length, with a cache that grows or one of
  fixed size (`cache_implementation`), whichever is the fastest on prompts that are not compared
- transformers' continuous batching, as `rollout_engine: continuous_batching` uses it
- ours: the same call with each prompt computed and kept once

Exit code 1 if a completion differs or the wanted ratio is missed.

    --write          write the output into benchmarks/generation_speed.md
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, Qwen3ForCausalLM

from benchmarks.provenance import commit
from benchmarks.rloo_speed import count_tokens, parameters_of_blocks
from benchmarks.speed_inputs import matmul_gflops, save_reward_model
from benchmarks.speed_place import CPU, Place
from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    Runs,
    Tried,
    alternate,
    in_its_own_process,
    places_of,
    ratio,
    results_by_draw,
    tried,
)
from benchmarks.speed_table import add_options, check_seeds, circumstances, spread_line, table, whole, write_part
from containers.contracts.configs.parts.training import LoraSettings
from containers.models.loading import peft_config
from containers.rollouts.continuous_batching import batching
from containers.rollouts.shared_prompts import sharing

_MODULE = "benchmarks.generation_speed"
THEIRS, _BATCHED, OURS = "transformers, as TRL calls it", "transformers' continuous batching", "ours"
K = 4
_BATCH_PROMPTS = 2
_PROMPT_TOKENS = (200, 2000)
_WANTED = 1.5
_PAD = 0
_NO_END = 10**6  # beyond the vocabulary, so that no completion ends early
_FIGURES = Path(__file__).with_suffix(".md")


@dataclass(frozen=True)
class _Way:
    """How completions are written.

    Attributes:
        prompts: at once.
        by_length: the prompts are sorted beforehand.
        engine: opened on the model around each call.
        cache: `cache_implementation` of transformers.
    """

    prompts: int = _BATCH_PROMPTS
    by_length: bool = False
    engine: Any = nullcontext
    cache: str | None = None

    def order(self, lengths: list[int]) -> list[list[int]]:
        """Return the places of the prompts that are written together, call by call."""
        places = list(range(len(lengths)))
        if self.by_length:
            places.sort(key=lambda place: lengths[place])
        return [places[start : start + self.prompts] for start in range(0, len(places), self.prompts)]

    def tokens(self, lengths: list[int], *, new_tokens: int) -> int:
        """Return the tokens that `generate` computes, padding included; the last new token is never computed."""
        widths = [(len(call), max(lengths[place] for place in call)) for call in self.order(lengths)]
        return sum(K * count * (width + new_tokens - 1) for count, width in widths)


def setting(prompts: int, cache: str | None) -> str:
    """Return the name of a setting of transformers' generate: prompts at once, and the kind of cache."""
    few = f"{prompts} prompt{'' if prompts == 1 else 's, sorted,'} at once"
    return f"transformers, {few}, {'cache of fixed size' if cache else 'growing cache'}"


_SETTINGS = {
    setting(prompts, cache): _Way(prompts, by_length=True, cache=cache)
    for prompts in (1, 2, 4)
    for cache in (None, "static")
}
_WAYS = {THEIRS: _Way(), **_SETTINGS, _BATCHED: _Way(engine=batching), OURS: _Way(engine=sharing)}
_ONCE = (_BATCHED,)


def main() -> int:
    """Print a table for each number of new tokens; return 1 if completions differ or a ratio is too small."""
    transformers.utils.logging.disable_progress_bar()
    arguments, measured = _arguments(), commit()
    if arguments.measure:
        print(json.dumps(measure_way(arguments.measure, Path(arguments.folder), new_tokens=arguments.new_tokens[0])))
        return 0
    reached = True
    with tempfile.TemporaryDirectory(prefix="generation-speed-") as name:
        folder = Path(name)
        lengths = prepare(folder, count=arguments.prompts, seeds=[CALIBRATION_SEED, *arguments.seeds])
        folders = {seed: folder / f"draw-{seed}" for seed in arguments.seeds}
        for new_tokens in arguments.new_tokens:
            measure = in_its_own_process(_MODULE, ["--new-tokens", str(new_tokens)])
            peer = tried(list(_SETTINGS), folder=folder / f"draw-{CALIBRATION_SEED}", measure=measure)
            ways = [THEIRS, peer.best, _BATCHED, OURS]
            found = alternate(ways, folders=folders, rounds=arguments.rounds, measure=measure, once=_ONCE)
            draws = {seed: lengths[seed] for seed in arguments.seeds}
            text = _table(arguments, draws, new_tokens, found, peer)
            print(f"## {new_tokens} new tokens\n\n{text}\n", flush=True)
            if arguments.write:
                title, heading = "Generation, K completions of one prompt", f"{new_tokens} new tokens"
                write_part(_FIGURES, text, module=_MODULE, title=title, heading=heading, measured=measured)
            fast = all(ratio(found, way, ours=OURS).median >= _WANTED for way in (THEIRS, peer.best))
            reached = reached and _alike(found, peer) and fast
    return 0 if reached else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=2 * _BATCH_PROMPTS, help="of each draw; 4 unless given")
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[64, 256], help="tokens of every completion")
    add_options(parser, page=_FIGURES)
    parser.add_argument("--measure", choices=list(_WAYS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    check_seeds(parser, given.seeds)
    return given


def _drawn_lengths(count: int, *, seed: int) -> list[int]:
    rng = random.Random(seed)  # noqa: S311 - lengths, not secrets
    return [rng.randint(*_PROMPT_TOKENS) for _ in range(count)]


def prepare(folder: Path, *, count: int, seeds: list[int], place: Place = CPU) -> dict[int, list[int]]:
    """Write policy and prompts to disk, for the processes that measure; return the tokens of each seed's prompts."""
    save_reward_model(folder / "reward", data=None, place=place)
    config = AutoConfig.from_pretrained(folder / "reward")
    torch.manual_seed(1)
    Qwen3ForCausalLM(config).save_pretrained(folder / "policy")
    found = {seed: _drawn_lengths(count, seed=seed) for seed in seeds}
    for seed, lengths in found.items():
        rng = random.Random(seed)  # noqa: S311 - letters, not secrets
        prompts = [rng.choices(range(5, config.vocab_size), k=length) for length in lengths]
        (folder / f"draw-{seed}").mkdir()
        (folder / f"draw-{seed}" / "prompts.json").write_text(json.dumps(prompts))
    return found


def measure_way(name: str, folder: Path, *, new_tokens: int, place: Place = CPU) -> dict[str, Any]:
    """Return seconds of all calls, completions, tokens computed, and peak memory beyond the loaded model."""
    way = _WAYS[name]
    prompts: list[list[int]] = json.loads((folder / "prompts.json").read_text())
    policy: Any = _policy(folder.parent, place)
    policy(input_ids=torch.tensor([[5] * 64], device=place.device))  # warm up threads and allocator
    tokens: Counter[str] = Counter()
    count_tokens(policy, "policy", tokens)
    settings = GenerationConfig(
        max_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=_PAD,
        eos_token_id=_NO_END,
        disable_compile=True,
        cache_implementation=way.cache,
    )
    before, seconds = place.begin(), 0.0
    completions: dict[int, list[list[int]]] = {}
    for call in way.order([len(prompt) for prompt in prompts]):
        ids, mask = (part.to(place.device) for part in _rows([prompts[at] for at in call]))
        place.end()
        begin = time.perf_counter()
        with way.engine(policy):
            found = policy.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
        place.end()
        seconds += time.perf_counter() - begin
        written = found[:, ids.shape[1] :].tolist()
        completions |= {at: written[number * K : (number + 1) * K] for number, at in enumerate(call)}
    return {
        "seconds": seconds,
        "memory": place.peak() - before,
        "completions": [completions[at] for at in sorted(completions)],
        "tokens": tokens["policy"],
        "parameters": parameters_of_blocks(policy),
        "gflops": matmul_gflops(),
    }


def _policy(folder: Path, place: Place) -> Any:
    """Return the policy with adapters that have an effect."""
    adapters = peft_config(LoraSettings(r=16, alpha=32), task_type="CAUSAL_LM")
    base = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=place.dtype)
    torch.manual_seed(2)  # each way has its own process, and all need the same adapters
    policy = get_peft_model(base, adapters)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight += 0.01 * torch.randn_like(weight)
    return policy.to(place.device)


def _rows(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask of each prompt's rows, padded on the left, as TRL makes them."""
    width = max(map(len, prompts))
    asked = [prompt for prompt in prompts for _ in range(K)]
    ids = torch.tensor([[_PAD] * (width - len(prompt)) + prompt for prompt in asked])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in asked])
    return ids, mask


def _alike(found: Runs, peer: Tried) -> bool:
    """Whether all ways wrote the same completions of each draw."""
    return all(run["completions"] == runs[0]["completions"] for runs in results_by_draw(found, peer) for run in runs)


def _saving(lengths: list[int], name: str, *, new_tokens: int) -> float:
    """Return a way's tokens over those with each prompt computed once."""
    least = sum(lengths) + K * len(lengths) * (new_tokens - 1)
    return _WAYS[name].tokens(lengths, new_tokens=new_tokens) / least


def _table(
    arguments: argparse.Namespace, draws: Mapping[int, list[int]], new_tokens: int, found: Runs, peer: Tried
) -> str:
    gflops = statistics.median(run["gflops"] for runs in found.values() for run in runs)
    alike = "The completions are the same, token by token." if _alike(found, peer) else "The completions DIFFER."
    every = [length for lengths in draws.values() for length in lengths]
    counted = [_drawn_lengths(arguments.prompts, seed=seed) for seed in range(1, arguments.counted + 1)]

    def cells(name: str) -> tuple[list[str], list[str]]:
        computed = sum(run["tokens"] for run in found[name] if run["round"] == 1)
        seconds = whole(found[name], "seconds")
        rate = 2 * found[name][0]["parameters"] * computed / seconds / 1e9 / gflops
        return [f"{computed:,}"], [f"{len(every) * K * new_tokens / seconds:,.0f}", f"{rate:.0%}"]

    def places(name: str) -> str:
        drawn = [_saving(one, name, new_tokens=new_tokens) for one in draws.values()]
        of_all = [_saving(one, name, new_tokens=new_tokens) for one in counted]
        return f"Tokens computed, of those with each prompt once, by {name}: {places_of(drawn, of_all)}."

    lines = [
        f"{arguments.prompts} prompts a draw, of {min(every):,} to {max(every):,} tokens ({sum(every):,} in all), "
        f"{K} completions each, greedy, adapters of rank 16 on, seeds {' '.join(map(str, draws))}; "
        f"{circumstances(arguments.rounds, draws=len(draws))}",
        f"{alike} What is saved beside tokens: a cache that grows copies all keys with every new token.",
        "",
        peer.line("transformers' generate"),
        *map(places, dict.fromkeys([THEIRS, peer.best])),
        "",
        f"This machine multiplies matrices at {gflops:.0f} GFLOP/s (median, after each run); the share of it counts 2 "
        "operations per weight and token computed, without attention. New tokens come a few at a time, and each time "
        "all weights are read for them.",
        spread_line(len(draws), once=_ONCE if arguments.rounds > 1 else ()),
        "",
        *table(
            found,
            ours=OURS,
            before=["tokens computed"],
            after=["new tokens per second", "share of the matmul rate"],
            cells=cells,
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
