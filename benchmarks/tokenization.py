"""Time the tokenization of pairs: python -m benchmarks.tokenization [--data ../shared/data]

Real conversations with Qwen's own vocabulary (without --data made ones, with a vocabulary of their own), several short
ones one after the other, as long as one side of the pairs in the other benchmarks. The ways alternate, each time in its
own process:

- TRL's way: `datasets.map`, a row at a time
- ours on one thread, and on all

It prints the time for 20,000 pairs of 2,085 tokens, by the measured rate.

    --write    write the output into benchmarks/tokenization.md
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer

from benchmarks.made_data import described, folder_of
from benchmarks.provenance import commit
from benchmarks.speed_inputs import Conversation, real_pairs, save_reward_model
from benchmarks.speed_ratios import alternate, ratio
from benchmarks.speed_table import circumstances, write_part
from containers.models.token_batches import tokens_of_all

_TRL, _ONE, _ALL = "TRL's way, a row at a time", "ours, one thread", "ours, all threads"
_WAYS = (_TRL, _ONE, _ALL)
_PAGE = Path(__file__).with_suffix(".md")
_NUM_SHORT = 1500  # real pairs that long ones are made of
_TURNS = 12  # number of short real conversations in a long one
_PAIRS, _PAIR_TOKENS = 20_000, 2_085


def main() -> int:
    """Measure and print; with --write, write its part of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the real data; made rows without it")
    parser.add_argument("--conversations", type=int, default=1000, help="how many; 1,000 unless given")
    parser.add_argument("--rounds", type=int, default=3, help="alternations; 3 unless given")
    parser.add_argument("--write", action="store_true", help=f"write into {_PAGE.name}; without it, print")
    parser.add_argument("--measure", choices=_WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given, measured = parser.parse_args(), commit()
    if given.measure:
        print(json.dumps(_measured(given.measure, given.folder)))
        return 0
    with folder_of(given.data) as data:
        text = _compared(data, given.conversations, given.rounds)
    print(text)
    if given.write:
        module, title, heading = "benchmarks.tokenization", "Tokens of the pairs", described(given.data).capitalize()
        write_part(_PAGE, text, module=module, title=title, heading=heading, measured=measured)
    return 0


def _compared(data: Path, num_conversations: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory(prefix="tokenization-") as name:
        folder = Path(name)
        _prepare(folder, data, num_conversations)
        found = alternate(_WAYS, folders={1: folder}, rounds=rounds, measure=_in_own_program)
    lines = [
        f"{num_conversations:,} conversations of {found[_ALL][0]['tokens'] / num_conversations:,.0f} tokens on "
        "average. "
        f"{circumstances(rounds)}",
        "",
        f"| way | tokens a second | {_PAIRS:,} pairs of {_PAIR_TOKENS:,} tokens | ours on all threads is faster |",
        "| --- | ---: | ---: | ---: |",
    ]
    for way, runs in found.items():
        rate = median(run["tokens"] / run["seconds"] for run in runs)
        times = ratio(found, way, ours=_ALL)
        faster = "" if way == _ALL else f"{times.median:.2f} (rounds apart by {times.clock:.0%})"
        lines.append(f"| {way} | {rate:,.0f} | {_PAIRS * _PAIR_TOKENS / rate:,.0f} s | {faster} |")
    return "\n".join(lines)


def _prepare(folder: Path, data: Path, num_conversations: int) -> None:
    """Write the tokenizer and the conversations: several short real ones as the turns of a long one."""
    pairs = real_pairs(data, _NUM_SHORT)
    save_reward_model(folder / "model", data=data)
    sides = [side for pair in pairs for side in pair]

    def long(number: int) -> Conversation:
        return [turn for offset in range(_TURNS) for turn in sides[(number * _TURNS + offset) % len(sides)]]

    conversations = [long(number) for number in range(num_conversations)]
    (folder / "conversations.json").write_text(json.dumps(conversations), encoding="utf-8")


def _in_own_program(way: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.tokenization", "--measure", way]
    threads = {} if way == _ALL else {"RAYON_NUM_THREADS": "1"}
    environment = {**os.environ, **threads}
    done = subprocess.run(
        [*command, "--folder", str(folder)], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{way}: {result['seconds']:.1f} s", file=sys.stderr, flush=True)
    return result


def _measured(way: str, folder: Path) -> dict[str, float]:
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    conversations = json.loads((folder / "conversations.json").read_text(encoding="utf-8"))
    rows = Dataset.from_list([{"messages": conversation} for conversation in conversations])

    def row_tokens(row: dict[str, Any]) -> dict[str, Any]:
        encoded = tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=True)
        return {"input_ids": encoded["input_ids"]}

    started = time.perf_counter()
    if way == _TRL:
        made = rows.map(row_tokens, keep_in_memory=True, load_from_cache_file=False)
        seconds = time.perf_counter() - started
        tokens = sum(len(row["input_ids"]) for row in made)
    else:
        found = tokens_of_all(tokenizer, conversations)
        seconds = time.perf_counter() - started
        tokens = sum(map(len, found))
    return {"seconds": seconds, "tokens": tokens}


if __name__ == "__main__":
    sys.exit(main())
