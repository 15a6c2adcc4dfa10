"""Measure host memory while each rank loads a model: python -m benchmarks.load_memory [PARAMETERS_IN_MILLIONS]

It writes a Qwen3 of random bfloat16 weights. One and then two processes load it at once as a stage does, in the type of
its files and in float32. It prints the memory of all processes together, less their memory before: proportional set
size, of which anonymous memory. Pages of the weight files count once, however many ranks map them.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from containers.harness.measure import cpu_model

_LOADER = """
import sys
import torch
from pathlib import Path
from containers.models.loading import load_causal_model
folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
model = load_causal_model(folder, dtype=dtype, device="cpu")
print("loaded", flush=True)
sys.stdin.readline()
"""
_HIDDEN_SIZE, _INTERMEDIATE_SIZE, _VOCABULARY = 1024, 3072, 4096


def main() -> int:
    """Print one line per number of ranks and type."""
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("millions", nargs="?", type=int, default=400, help="parameters of the model, in millions")
    with tempfile.TemporaryDirectory(prefix="load-memory-") as folder:
        num_bytes = _write_model(Path(folder), millions=parser.parse_args().millions)
        print(f"weight files {num_bytes / 1024**2:,.0f} MiB, bfloat16; {cpu_model()}, {platform.system()}")
        for dtype in ("bfloat16", "float32"):
            for num_ranks in (1, 2):
                before, after = _measure(Path(folder), dtype=dtype, num_ranks=num_ranks)
                grown = {name: (after[name] - before[name]) / num_bytes for name in after}
                print(
                    f"{num_ranks} rank(s), loaded as {dtype}: {grown['Pss']:.2f} times the files in memory, of which "
                    f"{grown['Anonymous']:.2f} anonymous; {before['Pss'] / num_ranks / 1024**2:,.0f} MiB a rank before"
                )
    return 0


def _write_model(folder: Path, *, millions: int) -> int:
    """Write a model folder; return the bytes of its weight files."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    block = 4 * _HIDDEN_SIZE**2 + 3 * _HIDDEN_SIZE * _INTERMEDIATE_SIZE
    config = Qwen3Config(
        num_hidden_layers=max(1, (millions * 1_000_000 - _VOCABULARY * _HIDDEN_SIZE) // block),
        hidden_size=_HIDDEN_SIZE,
        intermediate_size=_INTERMEDIATE_SIZE,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=_VOCABULARY,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _measure(folder: Path, *, dtype: str, num_ranks: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of all ranks together, before and after each has loaded the model."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _LOADER, str(folder), dtype]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(num_ranks)
    ]
    try:
        before = _memory_at(ranks, "ready")
        for rank in ranks:
            _tell(rank)
        after = _memory_at(ranks, "loaded")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return before, after


def _memory_at(ranks: list["subprocess.Popen[str]"], word: str) -> dict[str, int]:
    for rank in ranks:
        if rank.stdout is None or rank.stdout.readline().strip() != word:
            raise SystemExit(f"A rank ended before it was {word}; its error stands above.")
    rollups = [Path(f"/proc/{rank.pid}/smaps_rollup").read_text(encoding="ascii") for rank in ranks]
    return {name: sum(_kibibytes(text, name) * 1024 for text in rollups) for name in ("Pss", "Anonymous")}


def _kibibytes(rollup: str, name: str) -> int:
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith(f"{name}:"))


def _tell(rank: "subprocess.Popen[str]") -> None:
    if rank.stdin is not None:
        rank.stdin.write("\n")
        rank.stdin.flush()


if __name__ == "__main__":
    sys.exit(main())
