"""Load and save models, and refuse those that would silently train or score wrongly."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from containers.contracts.configs.parts.training import Quantization
from containers.contracts.names import MERGED_FOLDER
from containers.formatting import one_line
from containers.harness.errors import DivergedError, MissingPrerequisiteError
from containers.models.adapters import apply_lora as apply_lora
from containers.models.adapters import freeze_all_but_head as freeze_all_but_head
from containers.models.adapters import is_adapted_model, load_adapted_model
from containers.models.adapters import peft_config as peft_config
from containers.models.offloading import is_spilled, spilling_arguments
from containers.models.quantized import is_quantized, loading_arguments, make_plain, num_values, ready_to_train
from containers.models.score_token import give_embedding_row
from containers.models.tensor_parallel import dividing_arguments, is_share, share_of_weight
from containers.models.tokenizer_loading import load_tokenizer as load_tokenizer
from containers.models.tokenizer_loading import num_embedding_rows as num_embedding_rows
from containers.models.tokenizer_loading import probe_ids
from containers.models.tokenizer_loading import require_own_tokenizer as require_own_tokenizer
from containers.models.tokenizer_loading import require_rows as require_rows
from containers.models.weights import SCORE_HEAD as SCORE_HEAD
from containers.models.weights import first_of, load_weights, require_trunk

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
logger = logging.getLogger(__name__)
# Limit for models without a maximum number of positions.
_WITHOUT_END = 2**31 - 1


def load_causal_model(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    note: Callable[[str], None] = logger.warning,
    quantization: Quantization | None = None,
    share_of: int = 1,
    spills: bool = False,
) -> PreTrainedModel:
    """Load a language model with all its weights from the folder, finite, in evaluation mode.

    Args:
        note: called with a text if the generation config had to be corrected so that it can be saved again.
        quantization: of the linear layers but the head.
        share_of: number of programs that hold the model together, of which this is one (`tensor_parallel`).
        spills: layers for which the GPU has no room stay in host memory; for a few forwards.

    Raises:
        BadConfigError: so many programs cannot divide it.
        MissingPrerequisiteError: the folder holds no such model, is damaged, or lacks weights.
        DivergedError: a weight is NaN or infinite.
    """
    quantized = loading_arguments(quantization, dtype=dtype, device=device)
    shares = dividing_arguments(AutoModelForCausalLM, folder, share_of=share_of)
    if spills:
        shares |= spilling_arguments(AutoModelForCausalLM, folder, device)
    model, missing = load_weights(AutoModelForCausalLM, folder, dtype=dtype, **quantized, **shares)
    if missing:
        raise MissingPrerequisiteError(f"{folder} lacks weights of its architecture: {first_of(missing)}.")
    if mended := mend_generation_config(model):
        note(mended)
    return _ready(model, folder, device=device)


def reward_model_folder(given: Path) -> Path:
    """Folder with a reward model's weights: `merged/` if it was trained here, else the given folder."""
    merged = given / MERGED_FOLDER
    return merged if merged.is_dir() else given


def load_reward_model(
    folder: Path, *, dtype: torch.dtype, device: torch.device | str, share_of: int = 1, spills: bool = False
) -> PreTrainedModel:
    """Load a trained reward model with its score head, in evaluation mode; an adapter is merged into its base model.

    Args:
        share_of: as of `load_causal_model`, and so is `spills`.

    Raises:
        BadConfigError: so many programs cannot divide it.
        MissingPrerequisiteError: as `load_causal_model`; also if the score head is missing (transformers alone would
            use a random one) or has more than one output, or if there is no token to pad batches with.
        DivergedError: a weight is NaN or infinite.
    """
    shares = dividing_arguments(AutoModelForSequenceClassification, folder, share_of=share_of)
    if is_adapted_model(folder):
        adapted, tokenizer = load_adapted_model(folder, dtype=dtype), load_tokenizer(folder)
        require_own_tokenizer(adapted, tokenizer, folder=folder)
        adapted.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        return _ready(adapted, folder, device=device)
    if spills:
        shares |= spilling_arguments(AutoModelForSequenceClassification, folder, device)
    model, missing = load_weights(AutoModelForSequenceClassification, folder, dtype=dtype, **shares)
    require_trunk(missing, folder=folder)
    if not hasattr(model, SCORE_HEAD):
        raise MissingPrerequisiteError(
            f"{folder} is a {type(model).__name__}, which has no `{SCORE_HEAD}` head: only causal language models with "
            "one linear score head are read. Name a reward model of such a family (Qwen, Llama, Mistral and others)."
        )
    if missing:
        raise MissingPrerequisiteError(
            f"{folder} is no trained reward model: {first_of(missing)} is not in its files and would be made at "
            f"random. A LoRA adapter must be saved with modules_to_save [{SCORE_HEAD}]."
        )
    if model.config.num_labels != 1:
        raise MissingPrerequisiteError(
            f"{folder} has {model.config.num_labels} outputs; a reward model has one. Name one that was trained with "
            "num_labels 1."
        )
    give_pad_token(model, folder)
    return _ready(model, folder, device=device)


def load_new_reward_model(
    folder: Path,
    *,
    pad_token_id: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str,
    score_token_id: int | None = None,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """Load a language model's trunk as a reward model, with a new score head made from `seed`.

    Args:
        quantization: of the trunk's linear layers.
        score_token_id: the token at whose position the score is read; it gets an embedding row. None: no such token.

    Raises:
        MissingPrerequisiteError: a weight other than the score head's is missing.
        DivergedError: a weight is NaN or infinite.
    """
    set_seed(seed)
    quantized = loading_arguments(quantization, dtype=dtype, device=device)
    model, missing = load_weights(AutoModelForSequenceClassification, folder, dtype=dtype, num_labels=1, **quantized)
    require_trunk(missing, folder=folder)
    model.config.get_text_config().pad_token_id = pad_token_id
    if score_token_id is not None:
        give_embedding_row(model, score_token_id)
    return _ready(model, folder, device=device)


def save_adapter(model: PeftModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, base_model: str) -> None:
    """Write the adapter (with its score head, if it has one) and the tokenizer into `folder`.

    Args:
        base_model: `hub id@commit`, or another origin of the base model, for people; PEFT would write the path on this
            machine. Hub id and commit are written separately, as `AutoPeftModel` needs them.
    """
    name, _, revision = (base_model, "", "") if base_model.startswith("/") else base_model.partition("@")
    for config in model.peft_config.values():
        config.base_model_name_or_path, config.revision = name or None, revision or None
        if isinstance(config.target_modules, set):
            # A set has another order in each process: sorted, the same run writes the same file.
            config.target_modules = sorted(config.target_modules)
    # Without this, PEFT requests the base model's vocabulary from the hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)


def save_merged(
    model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> PreTrainedModel:
    """Write a plain model folder (safetensors, config, tokenizer, chat template) and return the written model.

    Adapters are merged into the weights of `model` in place, which are dequantized before; do not use it afterwards.
    """
    if is_quantized(model):
        make_plain(model)
    merged = model.merge_and_unload() if isinstance(model, PeftModel) else model
    # One type for all weights: the score head and others that were trained in float32 get the first weight's type.
    merged = merged.to(merged.dtype)
    merged.config.use_cache = True
    merged.name_or_path = ""
    merged.config.name_or_path = ""
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return merged


def parameter_counts(model: torch.nn.Module) -> tuple[int, int]:
    """Trainable and total number of parameters; shared ones count once, and packed ones as what they stand for."""
    sizes = [(num_values(parameter), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)


def max_positions(model: torch.nn.Module) -> int | None:
    """Number of the model's positions, in tokens; None if its configuration names no limit, as with ALiBi."""
    config: Any = model.config
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if found is None else int(found)


def position_limit(model: torch.nn.Module) -> int:
    """Return `max_positions` for comparing lengths; without a limit, a number above any text's length."""
    return max_positions(model) or _WITHOUT_END


def check_finite(model: torch.nn.Module, *, name: str) -> None:
    """Raise DivergedError if a weight of the model is NaN or infinite; names the weight.

    Of a quantized one, its scales tell.
    """
    for parameter_name, parameter in model.named_parameters():
        weights = getattr(parameter, "quant_state", None)
        values = share_of_weight(parameter) if weights is None else weights.absmax
        if not values.is_meta and not torch.isfinite(values).all():  # what accelerate holds elsewhere is no weight here
            raise DivergedError(f"{name}: the weight {parameter_name} is not finite. The model cannot be used.")


def _ready(model: PreTrainedModel, folder: Path, *, device: torch.device | str) -> PreTrainedModel:
    # Move to the device first: on one core the check took 56 s for 8B weights (2^28 zeros in bfloat16, 1.8 s).
    if is_quantized(model):  # it was loaded there
        ready_to_train(model)
    elif not is_share(model) and not is_spilled(model):  # so were these
        model = model.to(device)
    model = model.eval()
    check_finite(model, name=str(folder))
    return model


def give_pad_token(model: PreTrainedModel, folder: Path) -> None:
    """Set a pad token in the model's config if it names none, or one without an embedding row (Llama's -1).

    Without one, transformers reads the score at a conversation's last token, and takes one conversation at a time. With
    one, it reads the score at the last token that is no pad token. Both agree only if no conversation ends with the pad
    token; so the end of sequence, with which many tokenizers pad, cannot be used.

    Raises:
        MissingPrerequisiteError: every special token may end a conversation, or there is no tokenizer.
    """
    config, num_rows = model.config.get_text_config(), model.get_input_embeddings().weight.shape[0]
    named = getattr(config, "pad_token_id", None)
    if named is not None and 0 <= named < num_rows:
        return
    tokenizer = load_tokenizer(folder)
    last = probe_ids(tokenizer)[-1]
    choices = (token_id for token_id in _candidates(tokenizer) if token_id < num_rows and token_id != last)
    found = next(choices, None)
    if found is None:
        raise MissingPrerequisiteError(
            f"The model in {folder} names no pad_token_id, and its tokenizer has no token to pad batches with: every "
            f"conversation ends with {tokenizer.convert_ids_to_tokens(last)}, and there is no other special token. "
            "Set pad_token_id in its config.json to the id of a token with which no conversation ends."
        )
    config.pad_token_id = found


def _candidates(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return special tokens, first those least likely to end a text; without the end of sequence."""
    special = [token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special]
    asked = (tokenizer.pad_token_id, tokenizer.bos_token_id, *sorted(special), tokenizer.unk_token_id)
    return [int(token_id) for token_id in asked if token_id is not None and token_id != tokenizer.eos_token_id]


def mend_generation_config(model: PreTrainedModel) -> str:
    """Correct the model's generation config so that transformers can save it; return what changed, empty if nothing.

    Training changes the config (the pad token), and at its end transformers refuses to save one that contradicts
    itself. Llama 2's first files do: a temperature of 0.9 and a top-p of 0.6, with do_sample false. Our stages use only
    token ids from it; users of the trained model use the rest.
    """
    own = model.generation_config
    if own is None or not (issue := _why_not_saved(own)):
        return ""
    for name in _TOKEN_IDS:  # old Llama files have a pad token of -1
        if isinstance(token_id := getattr(own, name), int) and token_id < 0:
            setattr(own, name, None)
    found = f"The model's generation_config.json contradicts itself ({issue}) and could not be saved after training"
    if not _why_not_saved(own):
        return f"{found}: token ids below zero were removed. Training and evaluation do not depend on them."
    sampled = GenerationConfig.from_dict({**own.to_dict(), "do_sample": True})
    if not _why_not_saved(sampled):
        model.generation_config = sampled
        return f"{found}: do_sample is now true, the rest is kept. Training and evaluation do not depend on it."
    ids: dict[str, Any] = {name: getattr(own, name) for name in _TOKEN_IDS}
    model.generation_config = GenerationConfig(**ids)
    return f"{found}: only its token ids are kept. Training and evaluation do not depend on the rest."


def _why_not_saved(config: GenerationConfig) -> str:
    """Return the settings that transformers rejects; empty if it would save the config."""
    try:
        config.validate(strict=True)
    except ValueError as error:
        return ", ".join(re.findall(r"^- `(\w+)`:", str(error), re.MULTILINE)) or one_line(str(error), 120)
    return ""
