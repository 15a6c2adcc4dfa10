"""Where the speed benchmarks compute, and how large their model is: float32 on the processor, bf16 on a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.speed_ratios import peak_bytes

_SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
_QWEN3_06B = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@dataclass(frozen=True)
class Place:
    """A device with the shape of the model that is measured there.

    Attributes:
        shape: of Qwen3's config, without its vocabulary.
        vocabulary: words of the model; None: those of its tokenizer.
        pack_tokens: of a full pack of pairs, and of completions; None: as on a processor.
    """

    device: str = "cpu"
    shape: Mapping[str, int] = field(default_factory=lambda: _SMALL)
    vocabulary: int | None = None
    pack_tokens: int | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.device != "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights that are not trained."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of every trainer."""
        return {"use_cpu": not self.on_gpu, "bf16": self.on_gpu}

    def begin(self) -> int:
        """Wait for the device; return the memory in bytes from which a peak counts."""
        if not self.on_gpu:
            return peak_bytes()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def end(self) -> None:
        """Wait until the device has computed all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak(self) -> int:
        """Return the peak memory in bytes: of this program, or on the GPU since `begin`."""
        return torch.cuda.max_memory_allocated() if self.on_gpu else peak_bytes()


CPU = Place()
# Packs as the stages make them there with 4 examples a device: pairs of 4,096 tokens, completions of 2,600.
GPU = Place("cuda", _QWEN3_06B, vocabulary=151_936, pack_tokens=10_400)
