"""Remove harmless messages of libraries from a stage's log: each was examined, and does not matter here.

Exact texts, so that other messages of the same kind are still shown. The launcher's environment turns progress bars
off.
"""

import logging
import re
import warnings
from functools import partial

# TRL and PEFT still use these names; transformers 5 has renamed them (`gradient` to `activation`), and accepts both.
_RENAMED = (
    *(f"gradient_checkpointing{ending}" for ending in ("", "_kwargs", "_enable", "_disable")),
    "is_gradient_checkpointing",
)
_HARMLESS = {
    # The stage compares every length with its own limit, and leaves out and counts longer rows.
    "transformers.tokenization_utils_base": re.compile(
        r"Token indices sequence length is longer than the specified maximum sequence length for this model "
    ),
    # A head that shares the embedding's weights is in no checkpoint; one with its own weights is in every checkpoint.
    "transformers.trainer": re.compile(
        r"There were missing keys in the checkpoint model loaded: \['lm_head\.weight'\]\.\Z"
    ),
    # An optional faster product of quantized layers on a CPU, which only inference would use.
    "bitsandbytes.backends.cpu.ops": re.compile(r"Failed to load CPU gemm_4bit_forward from kernels-community"),
    # What int8 layers are: they round their inputs. Said by every layer in every forward.
    "bitsandbytes.autograd._functions": re.compile(
        r"MatMul8bitLt: inputs will be cast from \S+ to float16 during quantization\Z"
    ),
    # The first plot on a machine looks for its fonts.
    "matplotlib.font_manager": re.compile(r"generated new fontManager\Z"),
}


def silence_known_noise() -> None:
    """Keep these messages, and no others, out of the log from now on, without importing the libraries."""
    for old in _RENAMED:
        new = old.replace("gradient", "activation")
        text = f"`{old}` is deprecated and will be removed in v6. Use `{new}` instead."
        warnings.filterwarnings("ignore", message=re.escape(text) + r"\Z", category=FutureWarning)
    for name, pattern in _HARMLESS.items():
        logging.getLogger(name).addFilter(partial(_is_another_message, pattern))


def _is_another_message(pattern: re.Pattern[str], record: logging.LogRecord) -> bool:
    return pattern.match(record.getMessage()) is None
