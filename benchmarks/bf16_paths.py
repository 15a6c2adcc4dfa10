"""Measure how far scores in bfloat16 of the same weights differ between code paths.

    python -m benchmarks.bf16_paths

Models of random weights with adapters, frozen weights in bfloat16, as on a GPU profile; 64 conversations of 50 to 250
tokens, as many as a certificate compares. Scores one by one are compared with padded batches of 16, and with the merged
model. Two conversations are a pair; the difference of its margin is a share of a typical margin (root mean square).

Rounding in the layers explains 2⁻⁹ √(2 × layers) of the largest score; `containers.scoring.scorer.allowed_difference`
allows four times that, and eight times for the merged model; `containers.certificate.parity` bounds margins and orders.
Exit code 1 if a code path differs by more.

    --write    write the output into benchmarks/bf16_paths.md
"""

import argparse
import copy
import math
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from peft import get_peft_model
from torch import Tensor
from torch.nn.init import normal_
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from benchmarks.provenance import commit, when_and_where
from containers.contracts.configs.parts.training import LoraSettings
from containers.models.loading import peft_config
from containers.scoring.rounding import MARGIN_SHARE, ORDERS_SHARE, allowed_difference

_FIGURES = Path(__file__).with_suffix(".md")
_HEAD_WIDTH, _VOCABULARY = 64, 1000
_CONVERSATIONS, _BATCH = 64, 16


class Case(NamedTuple):
    """A model: its width and layers, and the spread of its adapters' and its score head's weights."""

    width: int
    layers: int
    adapters: float
    head: float
    seed: int


_CASES = [
    *(Case(width, layers, 0.01, 0.02, 0) for width, layers in ((64, 4), (256, 8), (256, 36), (512, 8), (512, 36))),
    *(Case(512, 36, adapters, head, 1) for adapters, head in ((0.01, 0.2), (0.03, 0.02), (0.1, 0.02))),
    *(Case(512, layers, 0.01, 0.02, 2) for layers in (36, 64)),
]


def main() -> int:
    """Print the table; return 1 if a code path differs by more than is allowed."""
    transformers.utils.logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write the table into {_FIGURES.name}")
    arguments, measured = parser.parse_args(), commit()
    lines = [
        f"{torch.get_num_threads()} threads; torch {torch.__version__}, transformers "
        f"{transformers.__version__}. Shares are of the largest score, as far as that is above 1.",
        "",
        "| width | layers | adapters' spread | largest score | spread of scores | in a batch | merged | allowed | "
        "allowed merged | margin, in a batch | margin, merged | orders changed, of 32 |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    held = True
    for case in _CASES:
        alone, batch, merged = _paths(case)
        largest = float(alone.abs().max())
        bounds = [
            allowed_difference(torch.bfloat16, alone.tolist(), num_layers=case.layers, is_rounded=rounded)
            for rounded in (False, True)
        ]
        apart = [float((found - alone).abs().max()) for found in (batch, merged)]
        held = held and all(one <= bound for one, bound in zip(apart, bounds, strict=True))
        margins, orders = zip(*(_margins_apart(alone, found) for found in (batch, merged)), strict=True)
        held = held and max(margins) <= MARGIN_SHARE and max(orders) <= ORDERS_SHARE * len(alone) / 2
        shares = " | ".join(f"{100 * value / max(1.0, largest):.1f} %" for value in (*apart, *bounds))
        shares += " | " + " | ".join((*(f"{margin:.1%}" for margin in margins), ", ".join(map(str, orders))))
        lines.append(
            f"| {case.width} | {case.layers} | {case.adapters} | {largest:.2f} | {float(alone.std()):.2f} | {shares} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        question = "How far apart are scores that the same weights give on different code paths?"
        command, where = "python -m benchmarks.bf16_paths --write", when_and_where(measured)
        page = f"# Scores in bfloat16\n\n{question}\n\n`{command}`\n\n{where}.\n\n{text}\n"
        _FIGURES.write_text(page, encoding="utf-8")
    return 0 if held else 1


def _margins_apart(alone: Tensor, found: Tensor) -> tuple[float, int]:
    """Return the largest difference of a margin, as a share of a typical one, and the number of changed orders."""
    wanted, other = alone[::2] - alone[1::2], found[::2] - found[1::2]
    return float((other - wanted).abs().max() / wanted.square().mean().sqrt()), int((wanted * other <= 0).sum())


def _paths(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return [64] scores each: one by one, in padded batches, and one by one by the merged model."""
    torch.manual_seed(case.seed)
    heads = case.width // _HEAD_WIDTH
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=case.width,
        intermediate_size=3 * case.width,
        num_hidden_layers=case.layers,
        num_attention_heads=heads,
        num_key_value_heads=math.ceil(heads / 2),
        head_dim=_HEAD_WIDTH,
        num_labels=1,
        pad_token_id=0,
    )
    model: Any = Qwen3ForSequenceClassification(config).eval().to(torch.bfloat16)
    head = normal_(torch.empty(case.width), std=case.head)
    adapted = get_peft_model(model, peft_config(LoraSettings(r=16, alpha=32), task_type="SEQ_CLS"))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            normal_(weight, std=case.adapters)
    rng = random.Random(case.seed)  # noqa: S311
    rows = [[rng.randrange(1, _VOCABULARY) for _ in range(rng.randint(50, 250))] for _ in range(_CONVERSATIONS)]
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    alone, batch = _last_hidden(model, [[row] for row in rows]) @ head, _last_hidden(model, batches) @ head
    merged: Any = copy.deepcopy(adapted).merge_and_unload()
    return alone, batch, _last_hidden(merged, [[row] for row in rows]) @ head


@torch.no_grad()
def _last_hidden(model: Any, batches: list[list[list[int]]]) -> Tensor:
    """Return [rows, width] float32 of each row's last token; the batch is padded on the right."""
    found: list[Tensor] = []
    for rows in batches:
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        states = model.model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        found += [states[place, len(row) - 1].float() for place, row in enumerate(rows)]
    return torch.stack(found)


if __name__ == "__main__":
    sys.exit(main())
