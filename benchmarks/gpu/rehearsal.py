"""What a packed training step computes and keeps at full width, without a GPU: on tensors without storage.

    python -m benchmarks.gpu.rehearsal [--config FILE …]

Two and four blocks of each model are computed by the product's own step (adapters of rank 64, bfloat16 autocast, two
pairs of 3,072 tokens with their prompt once), each in a process of its own; the difference is two blocks. The page says
how far the plan's figures are from them: operations of matrix products, and bytes that live until the backward. What a
backward needs at its peak cannot be read off so: fake tensors free it late.
"""

import argparse
import json
import os
import subprocess
import sys
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peft.tuners.tuners_utils
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from containers.algorithms.reward_model import make_packs, packed_scores
from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.hardware import GpuProfile
from containers.models.loading import apply_lora
from containers.packing.attention import packed
from containers.scoring.scorer import classifier_of
from tasks.plan.estimates import TrainingLoad, training_memory, training_work
from tasks.plan.inputs.model_shape import ModelShape, lora_parameters, read_model_shape, total_parameters

_LORA = LoraSettings(r=64, alpha=128)
_PROFILE = GpuProfile(name="1x80gb", num_gpus=1, gpu_memory_gib=80)
# A prompt with two answers, twice.
_PAIR = ([1] * 1024 + [2] * 1024, [1] * 1024 + [3] * 1024)
_TOKENS = 2 * 3072
_MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear")
_BLOCKS = (2, 4)


@dataclass(frozen=True)
class Step:
    """Operations of a step's matrix products, attention left out, and bytes that live after its forward."""

    operations: float
    kept_bytes: float

    def __sub__(self, other: "Step") -> "Step":
        return Step(self.operations - other.operations, self.kept_bytes - other.kept_bytes)


def two_blocks(config: Path, *, checkpointing: bool) -> tuple[Step, Step]:
    """Return what two blocks of the model compute and keep: found, and by the plan.

    Args:
        config: config.json of a Qwen3 model.
    """
    return _between(config, checkpointing=checkpointing), _planned(config, checkpointing=checkpointing)


def _between(config: Path, *, checkpointing: bool) -> Step:
    found = []
    for blocks in _BLOCKS:
        command = [sys.executable, "-m", __spec__.name, "--measure", str(blocks), "--config", str(config)]
        command += ["--checkpointing"] if checkpointing else []
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(Step(**json.loads(said.splitlines()[-1])))
    return found[1] - found[0]


def _planned(config: Path, *, checkpointing: bool) -> Step:
    found = []
    for blocks in _BLOCKS:
        shape = read_model_shape(config).model_copy(update={"num_hidden_layers": blocks})
        load = TrainingLoad(
            shape=shape,
            total=total_parameters(shape, head="score"),
            trainable=lora_parameters(shape, _LORA) + shape.hidden_size,
            forward_tokens=_TOKENS,
            mean_tokens=_TOKENS,
            judged_tokens=0,
            gradient_checkpointing=checkpointing,
            uses_adapters=True,
        )
        work, memory = training_work(load, _PROFILE, sequences=1), training_memory(load, _PROFILE)
        found.append(Step(work.operations, memory["activations"]))
    return found[1] - found[0]


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._seen: set[int] = set()

    def add(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.bytes += size

        def gone() -> None:
            self._seen.discard(key)
            self.bytes -= size

        weakref.finalize(storage, gone)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return made


def measured(shape: ModelShape, *, checkpointing: bool) -> Step:
    """Compute one step in this process."""
    names = (name for name in ModelShape.model_fields if name not in ("model_type", "dtype"))
    config = Qwen3Config(
        **{name: getattr(shape, name) for name in names}, num_labels=1, pad_token_id=0, use_cache=False
    )
    # PEFT moves and casts modules; a tensor without storage cannot be swapped for another.
    setattr(torch.nn.Module, "to", lambda self, *_, **__: self)  # noqa: B010
    layer: Any = peft.tuners.tuners_utils.BaseTunerLayer
    layer._move_adapter_to_device_of_base_layer = lambda *_, **__: None
    (pack,) = make_packs([_PAIR, _PAIR], max_tokens=_TOKENS)
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16)
        model: Any = Qwen3ForSequenceClassification(config)
        torch.set_default_dtype(torch.float32)
        model = apply_lora(model, _LORA, task_type="SEQ_CLS")
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.enable_input_require_grads()
        model.train()
        classifier, live, flops = classifier_of(model), _Live(), FlopCounterMode(display=False)
        for tensor in (*model.parameters(), *model.buffers()):
            live.add(tensor)
        before = live.bytes
        with flops, live, packed(classifier):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = packed_scores(model, pack, classifier)
                loss = -torch.nn.functional.logsigmoid(scores[:, 0] - scores[:, 1]).mean()
            kept = live.bytes - before
            loss.backward()  # type: ignore[no-untyped-call]
    counts = flops.get_flop_counts()["Global"]
    products = sum(count for operation, count in counts.items() if str(operation).split(".")[-1] in _MATRIX_PRODUCTS)
    return Step(float(products), float(kept))


def main() -> int:
    """Print what two blocks of each model compute and keep, beside the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, nargs="+", required=True, help="config.json of Qwen3 models")
    parser.add_argument("--checkpointing", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        shape = read_model_shape(given.config[0]).model_copy(update={"num_hidden_layers": given.measure})
        print(json.dumps(asdict(measured(shape, checkpointing=given.checkpointing))), flush=True)
        os._exit(0)  # to free fake tensors aborts the process now and then (torch 2.13)
    for config in given.config:
        for checkpointing in (False, True):
            found, planned = two_blocks(config, checkpointing=checkpointing)
            print(
                f"{config.stem}, {'with' if checkpointing else 'without'} checkpointing: products "
                f"{found.operations / 1e12:.1f} TFLOP, plan {planned.operations / found.operations:.3f} of that; kept "
                f"{found.kept_bytes / 2**30:.2f} GiB, plan {planned.kept_bytes / found.kept_bytes:.3f} of that"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
