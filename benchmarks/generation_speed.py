"""Completions of one prompt from one prefill, beside transformers' generate: python -m benchmarks.generation_speed

The same prompts of 200 to 2,000 tokens with four completions each, of 64 and of 256 tokens, greedy, by the policy of
benchmarks/rloo_speed.py with its adapters on (random weights, Qwen3 of about 25M parameters beside its embeddings,
float32). The ways alternate, each time in its own process, whose peak memory is measured as well:

- transformers' generate as TRL calls it: each prompt once per completion, padded on the left to the longest
- transformers' continuous batching, as `rollout_engine: continuous_batching` uses it
- ours: the same call with each prompt computed and kept once

Exit code 1 if a completion differs or the wanted ratio is missed.

    --write          write the output into benchmarks/generation_speed.md
"""

import argparse
import json
import os
import random
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, Qwen3ForCausalLM

from benchmarks.rloo_speed import count_tokens, parameters_of_blocks
from benchmarks.speed_inputs import matmul_gflops, random_pairs, save_reward_model
from containers.contracts.configs.training import LoraSettings
from containers.harness.measure import cpu_model
from containers.models.loading import peft_config
from containers.rollouts.continuous_batching import batching
from containers.rollouts.shared_prompts import sharing

_THEIRS, _BATCHED, _OURS = "transformers, as TRL calls it", "transformers' continuous batching", "ours"
_WAYS = (_THEIRS, _BATCHED, _OURS)
_OPENED: dict[str, Any] = {_THEIRS: nullcontext, _BATCHED: batching, _OURS: sharing}
_K = 4
_BATCH_PROMPTS = 2
_PROMPT_TOKENS = (200, 2000)
_WANTED = 1.5
_MIB = 1024**2
_PAD = 0
_NO_END = 10**6  # beyond the vocabulary, so that no completion ends early
_FIGURES = Path(__file__).with_suffix(".md")
Found = dict[str, list[dict[str, Any]]]


def main() -> int:
    """Print a table for each number of new tokens; return 1 if completions differ or a ratio is too small."""
    transformers.utils.logging.disable_progress_bar()
    arguments = _arguments()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, Path(arguments.folder), new_tokens=arguments.new_tokens[0])))
        return 0
    with tempfile.TemporaryDirectory(prefix="generation-speed-") as name:
        lengths = _prepare(Path(name), count=arguments.prompts)
        found = {tokens: _alternate(Path(name), tokens, rounds=arguments.rounds) for tokens in arguments.new_tokens}
    text = "\n\n".join(
        [_setting(arguments, lengths), *(_table(lengths, tokens, runs) for tokens, runs in found.items())]
    )
    print(text)
    if arguments.write:
        command = " ".join(["python -m benchmarks.generation_speed", shlex.join(sys.argv[1:])])
        _FIGURES.write_text(f"# Generation, K completions of one prompt\n\n`{command}`\n\n{text}\n", encoding="utf-8")
    reached = all(_alike(runs) and statistics.median(_ratios(runs)) >= _WANTED for runs in found.values())
    return 0 if reached else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=2 * _BATCH_PROMPTS, help=f"in all, {_BATCH_PROMPTS} a batch")
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[64, 256], help="tokens of every completion")
    parser.add_argument("--rounds", type=int, default=3, help="alternations")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {_FIGURES.name}")
    parser.add_argument("--measure", choices=_WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def _prepare(folder: Path, *, count: int) -> list[int]:
    """Write policy and prompts to disk, for the processes that measure; return the tokens of each prompt."""
    save_reward_model(folder / "reward", random_pairs(2), data=None)
    config = AutoConfig.from_pretrained(folder / "reward")
    torch.manual_seed(1)
    Qwen3ForCausalLM(config).save_pretrained(folder / "policy")
    rng = random.Random(0)  # noqa: S311 - lengths and letters, not secrets
    prompts = [rng.choices(range(5, config.vocab_size), k=rng.randint(*_PROMPT_TOKENS)) for _ in range(count)]
    (folder / "prompts.json").write_text(json.dumps(prompts))
    return [len(prompt) for prompt in prompts]


def _measure(way: str, folder: Path, *, new_tokens: int) -> dict[str, Any]:
    """Return seconds of all batches, completions, tokens computed, and peak memory beyond the loaded model."""
    prompts: list[list[int]] = json.loads((folder / "prompts.json").read_text())
    policy: Any = _policy(folder)
    policy(input_ids=torch.tensor([[5] * 64]))  # warm up threads and allocator
    tokens: Counter[str] = Counter()
    count_tokens(policy, "policy", tokens)
    settings = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=_PAD, eos_token_id=_NO_END, disable_compile=True
    )
    before, completions, seconds = _peak_bytes(), [], 0.0
    for start in range(0, len(prompts), _BATCH_PROMPTS):
        ids, mask = _rows(prompts[start : start + _BATCH_PROMPTS])
        begin = time.perf_counter()
        with _OPENED[way](policy):
            found = policy.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
        seconds += time.perf_counter() - begin
        completions += found[:, ids.shape[1] :].tolist()
    return {
        "seconds": seconds,
        "memory": _peak_bytes() - before,
        "completions": completions,
        "tokens": tokens["policy"],
        "parameters": parameters_of_blocks(policy),
        "gflops": matmul_gflops(),
    }


def _policy(folder: Path) -> Any:
    """Return the policy with adapters that have an effect."""
    adapters = peft_config(LoraSettings(r=16, alpha=32), task_type="CAUSAL_LM")
    base = AutoModelForCausalLM.from_pretrained(folder / "policy")
    torch.manual_seed(2)  # each way has its own process, and all need the same adapters
    policy = get_peft_model(base, adapters)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight += 0.01 * torch.randn_like(weight)
    return policy


def _rows(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask of each prompt's rows, padded on the left, as TRL makes them."""
    width = max(map(len, prompts))
    asked = [prompt for prompt in prompts for _ in range(_K)]
    ids = torch.tensor([[_PAD] * (width - len(prompt)) + prompt for prompt in asked])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in asked])
    return ids, mask


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _alternate(folder: Path, new_tokens: int, *, rounds: int) -> Found:
    found: Found = {name: [] for name in _WAYS}
    for number in range(1, rounds + 1):
        for name, runs in found.items():
            command = [sys.executable, "-m", "benchmarks.generation_speed", "--measure", name, "--folder", str(folder)]
            command += ["--new-tokens", str(new_tokens)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            seconds = runs[-1]["seconds"]
            print(f"{new_tokens} tokens, round {number}: {name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return found


def _ratios(found: Found, way: str = _THEIRS) -> list[float]:
    return [theirs["seconds"] / ours["seconds"] for theirs, ours in zip(found[way], found[_OURS], strict=True)]


def _alike(found: Found) -> bool:
    """Whether all runs of both ways wrote the same completions."""
    first, *others = [run["completions"] for runs in found.values() for run in runs]
    return all(other == first for other in others)


def _setting(arguments: argparse.Namespace, lengths: list[int]) -> str:
    return (
        f"{len(lengths)} prompts of {min(lengths):,} to {max(lengths):,} tokens ({sum(lengths):,} in all), {_K} "
        f"completions each, {_BATCH_PROMPTS} prompts a batch, greedy, adapters of rank 16 on; "
        f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, {cpu_model()}; torch "
        f"{torch.__version__}, transformers {transformers.__version__}; {arguments.rounds} alternations, "
        f"load {os.getloadavg()[0]:.1f}."
    )


def _table(lengths: list[int], new_tokens: int, found: Found) -> str:
    gflops = statistics.median(run["gflops"] for runs in found.values() for run in runs)
    alike = "The completions are the same, token by token." if _alike(found) else "The completions DIFFER."
    lines = [
        f"## {new_tokens} new tokens\n",
        f"{alike} Token limit: {found[_THEIRS][0]['tokens'] / found[_OURS][0]['tokens']:.2f} times fewer tokens are "
        "computed. What is saved beside it is not in that limit: transformers copies all keys with every new token.\n",
        f"This machine multiplies matrices at {gflops:.0f} GFLOP/s (median, after each run); the share of it counts 2 "
        "operations per weight and token computed, without attention. New tokens come a few at a time, and each time "
        "all weights are read for them.\n",
        "| way | tokens computed | seconds, median | new tokens per second | share of the matmul rate "
        "| memory added, MiB | ours is faster |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in found.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        memory = statistics.median(run["memory"] for run in runs)
        ratios = _ratios(found, name)
        rate = 2 * runs[0]["parameters"] * runs[0]["tokens"] / seconds / 1e9 / gflops
        faster = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if name != _OURS else ""
        lines.append(
            f"| {name} | {runs[0]['tokens']:,} | {seconds:.1f} | {len(lengths) * _K * new_tokens / seconds:,.0f} | "
            f"{rate:.0%} | {memory / _MIB:,.0f} | {faster} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
