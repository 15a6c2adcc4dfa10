"""Frozen weights in 4 or 8 bits, by bitsandbytes through transformers; adapters train beside them.

NF4 keeps blocks of 64 weights as places in the quantiles of a normal distribution, with a scale for each block; the
scales are quantized again. int8 keeps a scale for each row (Dettmers et al. 2022 and 2023, arXiv:2208.07339 and
2305.14314). A layer computes with its weights dequantized. A published model has these weights, plain, with the
adapters merged: merging into quantized weights would round the adapters away.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.utils.integrations import dequantize_module_weight
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from containers.contracts.configs.parts.training import Quantization
from containers.harness.errors import MissingPrerequisiteError
from containers.models.weights import SCORE_HEAD

# Layers that stay plain: both kinds of head.
_PLAIN = ["lm_head", SCORE_HEAD]
# Attributes by which transformers and PEFT know a quantized model.
_MARKS = ("is_loaded_in_4bit", "is_loaded_in_8bit", "is_quantized", "quantization_method", "hf_quantizer")


def loading_arguments(
    quantization: Quantization | None, *, dtype: torch.dtype, device: torch.device | str
) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that load the weights quantized, on that device; empty without it.

    Args:
        dtype: in which layers compute, and in which all other weights are.

    Raises:
        MissingPrerequisiteError: the library is not installed.
    """
    if quantization is None:
        return {}
    if find_spec("bitsandbytes") is None:
        raise MissingPrerequisiteError(
            f"quantization is {quantization}, and bitsandbytes is not installed here. Build the stage image anew, or "
            "`pip install -e .[stages]`; or set quantization: null."
        )
    if quantization == "int8":
        settings = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=_PLAIN)
    else:
        settings = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            # Packed in numbers of the computing type, which FSDP divides; the usual uint8 it would leave whole.
            bnb_4bit_quant_storage=dtype,
            llm_int8_skip_modules=_PLAIN,
        )
    return {"quantization_config": settings, "device_map": {"": str(device)}}


def is_quantized(model: nn.Module) -> bool:
    """Whether the model holds quantized layers."""
    return any(_is_quantized_layer(module) for module in model.modules())


def num_values(parameter: nn.Parameter) -> int:
    """Number of weights that a parameter stands for; 4-bit ones are packed in fewer numbers."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(torch.Size(state.shape).numel())


def quantized_parts(model: nn.Module) -> Iterator[Any]:
    """Yield the states beside the weights of quantized layers; a layer and its copy on the same weights share them."""
    for module in model.modules():
        if _is_quantized_layer(module):
            yield from filter(None, (getattr(module, name, None) for name in ("state", "quant_state")))


def ready_to_train(model: nn.Module) -> None:
    """Keep bitsandbytes from storing 4-bit weights in an order for inference on a CPU, which a backward cannot read."""
    for module in model.modules():
        if _is_quantized_layer(module) and hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 - no attribute of a plain module


def marked_like(model: PreTrainedModel, source: PreTrainedModel) -> PreTrainedModel:
    """Return the model, known as quantized if `source` is."""
    for name in _MARKS:
        if hasattr(source, name):
            setattr(model, name, getattr(source, name))
    return model


@torch.no_grad()
def make_plain(model: PreTrainedModel | PeftModel) -> None:
    """Replace quantized layers, in place, by plain ones of their dequantized weights, with adapters added; on the CPU.

    Afterwards the model has no adapter on these layers; what else PEFT wraps, it merges as usual.
    """
    base: PreTrainedModel = model.get_base_model() if isinstance(model, PeftModel) else model
    dtype = base.dtype
    adapted = {name for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    for name, module in list(base.named_modules()):
        layer = module.get_base_layer() if name in adapted else module
        # The layer inside an adapted one is replaced with it.
        if not _is_quantized_layer(layer) or name.rpartition(".")[0] in adapted:
            continue
        weight = dequantize_module_weight(layer).float()
        if isinstance(module, LoraLayer):
            for adapter in module.active_adapters:
                weight = weight + module.get_delta_weight(adapter).float().to(weight.device)
        plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, dtype=dtype)
        plain.weight.copy_(weight)
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
        parent, _, child = name.rpartition(".")
        setattr(base.get_submodule(parent), child, plain.requires_grad_(False))
    for name in _MARKS:
        base.__dict__.pop(name, None)
    base.config.__dict__.pop("quantization_config", None)
    base.cpu()


def _is_quantized_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("bitsandbytes.")
