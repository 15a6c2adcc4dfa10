"""Loads and saves models and tokenizers, and refuses those that would train or score silently wrong."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.utils import logging as transformers_logging

from containers.contracts.hardware import GpuProfile
from containers.contracts.stage_configs import LoraSettings
from containers.stages.chat_template import check_chat_template
from containers.stages.errors import BadConfigError, DivergedError, MissingPrerequisiteError

TaskType = Literal["CAUSAL_LM", "SEQ_CLS"]
SCORE_HEAD = "score"
# Tried in this order where a tokenizer has no pad token, or one that is also its end of sequence.
_PAD_CANDIDATES = ("<pad>", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>", "<|fim_pad|>", "<unk>")


def compute_device(profile: GpuProfile) -> torch.device:
    """This rank's GPU, or the CPU where the profile has no GPU.

    Raises:
        MissingPrerequisiteError: the profile has GPUs, torch sees none.
    """
    if profile.num_gpus == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MissingPrerequisiteError(
            f"Profile {profile.name} has {profile.num_gpus} GPUs, torch {torch.__version__} sees none. "
            f"Check the driver and that torch is a CUDA build."
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def compute_dtype(profile: GpuProfile) -> torch.dtype:
    """bfloat16 where the profile says bf16, float32 otherwise."""
    return torch.bfloat16 if profile.precision == "bf16" else torch.float32


def load_tokenizer(folder: Path, *, origin: str = "") -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, with a chat template that was tried and a pad token.

    The pad token differs from the end of sequence where the vocabulary has one that can: transformers finds the score's
    position by looking for the last token that is no pad token.

    Args:
        origin: where the model comes from, for messages; a stage sees it in a folder of its own.

    Raises:
        MissingPrerequisiteError: there is no tokenizer that can be loaded.
        BadConfigError: it has no chat template, or one that does not pass `check_chat_template`.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise MissingPrerequisiteError(f"{folder} holds no tokenizer that can be loaded: {error}") from error
    if not tokenizer.chat_template:
        raise BadConfigError(
            f"The tokenizer of {origin or folder} has no chat template, so a conversation has no one way to become "
            f"tokens. Start from an instruct model, or put a chat_template.jinja beside its tokenizer files."
        )
    check_chat_template(tokenizer, folder=folder, origin=origin)
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        vocabulary = tokenizer.get_vocab()
        choices = (token for token in _PAD_CANDIDATES if token in vocabulary and token != tokenizer.eos_token)
        tokenizer.pad_token = next(choices, tokenizer.eos_token)
    tokenizer.padding_side = "right"
    return tokenizer


def load_causal_model(folder: Path, *, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """A language model with every weight from the folder, finite, in evaluation mode.

    Raises:
        MissingPrerequisiteError: the folder is no such model, is damaged, or lacks weights.
        DivergedError: a weight is NaN or infinite.
    """
    model, missing = _load(AutoModelForCausalLM, folder, dtype=dtype)
    if missing:
        raise MissingPrerequisiteError(f"{folder} lacks weights of its own architecture: {_first(missing)}.")
    return _ready(model, folder, device=device)


def load_reward_model(folder: Path, *, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """A trained reward model, score head included, in evaluation mode.

    Raises:
        MissingPrerequisiteError: as `load_causal_model`; also where the score head is missing (plain transformers makes
            a random one and goes on) or has more than one output.
        DivergedError: a weight is NaN or infinite.
    """
    model, missing = _load(AutoModelForSequenceClassification, folder, dtype=dtype)
    if missing:
        raise MissingPrerequisiteError(
            f"{folder} is no trained reward model: {_first(missing)} is not in its files and would be made at random. "
            f"A LoRA adapter must be saved with modules_to_save [{SCORE_HEAD}]."
        )
    if model.config.num_labels != 1:
        raise MissingPrerequisiteError(f"{folder} has {model.config.num_labels} outputs; a reward model has one.")
    return _ready(model, folder, device=device)


def load_new_reward_model(
    folder: Path, *, pad_token_id: int, seed: int, dtype: torch.dtype, device: torch.device | str
) -> PreTrainedModel:
    """A reward model on the trunk of a language model, with a new score head made from `seed`.

    Raises:
        MissingPrerequisiteError: a weight other than the score head's is missing.
        DivergedError: a weight is NaN or infinite.
    """
    set_seed(seed)
    model, missing = _load(AutoModelForSequenceClassification, folder, dtype=dtype, num_labels=1)
    lost = [name for name in missing if not name.startswith(f"{SCORE_HEAD}.")]
    if lost:
        raise MissingPrerequisiteError(f"{folder} lacks weights of its own architecture: {_first(lost)}.")
    model.config.get_text_config().pad_token_id = pad_token_id
    return _ready(model, folder, device=device)


def peft_config(settings: LoraSettings | None, *, task_type: TaskType) -> LoraConfig | None:
    """LoRA on all linear layers; None where the whole model is trained.

    With task type SEQ_CLS the score head is trained in full and saved with the adapter; without either of the two it
    is lost, and reloaded scores change.
    """
    if settings is None:
        return None
    return LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type=task_type,
        modules_to_save=[SCORE_HEAD] if task_type == "SEQ_CLS" else None,
    )


def apply_lora(
    model: PreTrainedModel, settings: LoraSettings | None, *, task_type: TaskType
) -> PreTrainedModel | PeftModel:
    """The model with adapters that train in float32; the model itself where `settings` is None."""
    config = peft_config(settings, task_type=task_type)
    if config is None:
        return model
    adapted = get_peft_model(model, config)
    # PEFT raises adapters to float32, but not the copies of modules_to_save: in bf16 small updates would be lost.
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


def save_adapter(model: PeftModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, base_model: str) -> None:
    """Write the adapter (with its score head, where it has one) and the tokenizer into `folder`.

    Args:
        base_model: `hub id@commit`, or where else the base model comes from, for people; PEFT would write the path of
            this machine. Hub id and commit are written apart, as `AutoPeftModel` wants them.
    """
    name, _, revision = (base_model, "", "") if base_model.startswith("/") else base_model.partition("@")
    for config in model.peft_config.values():
        config.base_model_name_or_path, config.revision = name or None, revision or None
        # A set, which hashes differently in each process: sorted, the same run writes the same file.
        config.target_modules = sorted(config.target_modules)
    # Without this, PEFT asks the hub for the base model's vocabulary.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)


def save_merged(
    model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> PreTrainedModel:
    """Write a plain model folder (safetensors, config, tokenizer, chat template) and return what was written.

    Adapters are merged into the weights of `model` itself, which is used up by that.
    """
    merged = model.merge_and_unload() if isinstance(model, PeftModel) else model
    # One type for all weights: the score head and others that were trained in float32 follow the first one.
    merged = merged.to(merged.dtype)
    merged.config.use_cache = True
    merged.name_or_path = ""
    merged.config.name_or_path = ""
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return merged


def parameter_counts(model: torch.nn.Module) -> tuple[int, int]:
    """Trainable and total number of parameters; shared ones count once."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)


def check_finite(model: torch.nn.Module, *, name: str) -> None:
    """Raise DivergedError where a weight of the model is NaN or infinite; names the weight."""
    for parameter_name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise DivergedError(f"{name}: the weight {parameter_name} is not finite. The model cannot be used.")


def _load(auto_class: Any, folder: Path, *, dtype: torch.dtype, **settings: Any) -> tuple[PreTrainedModel, list[str]]:
    """The model and the names of the weights that its files lack. Safetensors only; no code of the folder is run."""
    if not (folder / "config.json").is_file():
        raise MissingPrerequisiteError(f"{folder} is no model folder: it has no config.json.")
    try:
        with _quiet_transformers():
            model, info = auto_class.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                # Only so that they come back by name; they are refused below.
                ignore_mismatched_sizes=True,
                **settings,
            )
    except Exception as error:
        raise MissingPrerequisiteError(f"The model in {folder} cannot be loaded: {error}") from error
    if info["mismatched_keys"]:
        name, found, wanted = min(info["mismatched_keys"])
        raise MissingPrerequisiteError(
            f"{folder}: {name} has the shape {tuple(found)} in its files, its config wants {tuple(wanted)}."
        )
    return model, sorted(info["missing_keys"])


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No load report: it warns of a new score head, which is wanted; what is not wanted is an error here."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def _ready(model: PreTrainedModel, folder: Path, *, device: torch.device | str) -> PreTrainedModel:
    check_finite(model, name=str(folder))
    return model.to(device).eval()


def _first(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
