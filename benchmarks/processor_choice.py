"""Find the precision and number of threads with the fastest training step on this processor.

One forward and backward of 2,048 tokens by the model of benchmarks/train_speed.py (random weights, Qwen3 of about 25M
parameters beside its embeddings), in float32 and in a Trainer's bfloat16 (autocast), on one thread and on as many as
there are cores. The ways alternate, each time in its own process.

    --write    write the output into benchmarks/processor_choice.md
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSequenceClassification

from benchmarks.provenance import commit
from benchmarks.speed_inputs import save_reward_model
from benchmarks.speed_ratios import Runs, alternate, in_its_own_process, ratio
from benchmarks.speed_table import circumstances, median, write_part
from containers.launch.host_limits import usable_cores

_FIGURES = Path(__file__).with_suffix(".md")
_MODULE = "benchmarks.processor_choice"
_TOKENS = 2048
_STEPS = 3
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> int:
    """Print a table; return 1 if the choice of `--profile auto` without a GPU is not the fastest."""
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="alternations")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_FIGURES.name}")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(_measure(arguments.measure, Path(arguments.folder))))
        return 0
    measured = commit()
    ways = [_way(precision, threads) for threads in sorted({1, usable_cores()}) for precision in _PRECISIONS]
    with tempfile.TemporaryDirectory(prefix="processor-choice-") as name:
        save_reward_model(Path(name) / "model", data=None)
        measure = in_its_own_process(_MODULE)
        found = alternate(ways, folders={1: Path(name)}, rounds=arguments.rounds, measure=measure)
    text = _table(found, rounds=arguments.rounds)
    print(text)
    if arguments.write:
        title = "Precision and threads of a processor"
        write_part(_FIGURES, text, module=_MODULE, title=title, heading="A step", measured=measured)
    return int(min(found, key=lambda way: median(found[way], "seconds")) != _chosen())


def _way(precision: str, threads: int) -> str:
    return f"{precision}, {threads} thread{'' if threads == 1 else 's'}"


def _chosen() -> str:
    return _way("float32", usable_cores())


def _measure(way: str, folder: Path) -> dict[str, Any]:
    """Return the median seconds of a step."""
    precision, _, threads = way.partition(", ")
    torch.set_num_threads(int(threads.split()[0]))
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    ids = torch.randint(5, model.config.vocab_size, (1, _TOKENS), generator=torch.Generator().manual_seed(0))
    seconds: list[float] = []
    for _ in range(1 + _STEPS):
        start = time.perf_counter()
        with torch.autocast("cpu", _PRECISIONS[precision], enabled=precision != "float32"):
            score = model(input_ids=ids).logits.float().sum()
        score.backward()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds[1:]), "memory": 0}


def _table(found: Runs, *, rounds: int) -> str:
    has = [flag for flag in _FLAGS if flag in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()]
    lines = [
        f"One forward and backward of {_TOKENS:,} tokens, median of {_STEPS} in a program. The processor has "
        f"{', '.join(has) or 'none of ' + ', '.join(_FLAGS)}; {circumstances(rounds)}",
        "",
        "| way | seconds, median | the choice of `--profile auto` is faster |",
        "| --- | ---: | ---: |",
    ]
    for name, runs in found.items():
        faster = ratio(found, name, ours=_chosen())
        compared = f"{faster.median:.2f} (rounds apart by {faster.clock:.0%})"
        lines.append(f"| {name} | {median(runs, 'seconds'):.2f} | {'' if name == _chosen() else compared} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
