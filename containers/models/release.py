"""Give back the memory of a model that is no longer needed."""

import gc
from typing import Any

import torch


def release(model: Any) -> None:
    """Free the model's memory, on a GPU too, for the next model."""
    model.to("meta")
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
