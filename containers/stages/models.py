"""Loads and saves models and tokenizers, and refuses those that would train or score silently wrong."""

import os
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.constants import DUMMY_TARGET_MODULES
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from containers.contracts.hardware import GpuProfile
from containers.contracts.names import MERGED_FOLDER
from containers.contracts.stage_configs import LoraSettings
from containers.human_text import one_line
from containers.stages.adapted_model import is_adapted_model, load_adapted_model
from containers.stages.chat_template import check_chat_template
from containers.stages.errors import BadConfigError, DivergedError, MissingPrerequisiteError
from containers.stages.score_token import give_embedding_row
from containers.stages.weights import SCORE_HEAD as SCORE_HEAD
from containers.stages.weights import demand_trunk, first_of, load_weights

TaskType = Literal["CAUSAL_LM", "SEQ_CLS"]
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


def load_tokenizer(folder: Path, *, origin: str = "", chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, with a chat template that was tried and a pad token.

    The pad token differs from the end of sequence where the vocabulary has one that can: transformers finds the score's
    position by looking for the last token that is no pad token.

    Args:
        origin: where the model comes from, for messages; a stage sees it in a folder of its own.
        chat_template: takes the place of the tokenizer's own, and is saved with it.

    Raises:
        MissingPrerequisiteError: there is no tokenizer that can be loaded.
        BadConfigError: it has no chat template, or one that does not pass `check_chat_template`.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise MissingPrerequisiteError(
            f"{folder} holds no tokenizer that can be loaded ({type(error).__name__}: {one_line(str(error), 200)}). "
            "Put the model's own tokenizer files there."
        ) from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not tokenizer.chat_template:
        raise BadConfigError(
            f"The tokenizer of {origin or folder} has no chat template, so a conversation has no one way to become "
            f"tokens. Start from an instruct model, or put a chat_template.jinja beside its tokenizer files."
        )
    check_chat_template(tokenizer, folder=folder, origin=origin, is_own=chat_template is None)
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
    model, missing = load_weights(AutoModelForCausalLM, folder, dtype=dtype)
    if missing:
        raise MissingPrerequisiteError(f"{folder} lacks weights of its own architecture: {first_of(missing)}.")
    return _ready(model, folder, device=device)


def reward_model_folder(given: Path) -> Path:
    """Where the weights lie of a reward model that was trained here (`merged/`) or elsewhere (the folder itself)."""
    merged = given / MERGED_FOLDER
    return merged if merged.is_dir() else given


def load_reward_model(folder: Path, *, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """A trained reward model, score head included, in evaluation mode; an adapter is merged into its base model.

    Raises:
        MissingPrerequisiteError: as `load_causal_model`; also where the score head is missing (plain transformers makes
            a random one and goes on) or has more than one output.
        DivergedError: a weight is NaN or infinite.
    """
    if is_adapted_model(folder):
        adapted, tokenizer = load_adapted_model(folder, dtype=dtype), load_tokenizer(folder)
        demand_own_tokenizer(adapted, tokenizer, folder=folder)
        adapted.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        return _ready(adapted, folder, device=device)
    model, missing = load_weights(AutoModelForSequenceClassification, folder, dtype=dtype)
    demand_trunk(missing, folder=folder)
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
    return _ready(model, folder, device=device)


def demand_own_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, folder: Path) -> None:
    """Refuse a tokenizer whose ids the model has no rows for, or that lacks tokens which the model's config names.

    Another model's tokenizer with as many tokens passes: nothing in the files tells it from the right one.

    Raises:
        MissingPrerequisiteError: the tokenizer belongs to another model.
    """
    num_rows, num_tokens = model.get_input_embeddings().weight.shape[0], len(tokenizer)
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= num_rows:
        raise MissingPrerequisiteError(
            f"The tokenizer in {folder} is that of another model: it has {num_tokens:,} tokens, the model's embedding "
            f"{num_rows:,} rows. Put the model's own tokenizer files there."
        )
    config = model.config.get_text_config()
    for name in ("bos_token_id", "eos_token_id"):
        named = getattr(config, name, None)
        for token_id in named if isinstance(named, list) else [named]:
            if token_id is not None and token_id > highest:
                raise MissingPrerequisiteError(
                    f"The tokenizer in {folder} is that of another model: the model's {name} is {token_id:,}, and the "
                    f"tokenizer's highest id {highest:,}. Put the model's own tokenizer files there."
                )


def load_new_reward_model(
    folder: Path,
    *,
    pad_token_id: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str,
    score_token_id: int | None = None,
) -> PreTrainedModel:
    """A reward model on the trunk of a language model, with a new score head made from `seed`.

    Args:
        score_token_id: the token whose position carries the score, which gets a row of the embedding; None: no such.

    Raises:
        MissingPrerequisiteError: a weight other than the score head's is missing.
        DivergedError: a weight is NaN or infinite.
    """
    set_seed(seed)
    model, missing = load_weights(AutoModelForSequenceClassification, folder, dtype=dtype, num_labels=1)
    demand_trunk(missing, folder=folder)
    model.config.get_text_config().pad_token_id = pad_token_id
    if score_token_id is not None:
        give_embedding_row(model, score_token_id)
    return _ready(model, folder, device=device)


def peft_config(
    settings: LoraSettings | None, *, task_type: TaskType, score_token_id: int | None = None
) -> LoraConfig | None:
    """LoRA on all linear layers; None where the whole model is trained.

    With task type SEQ_CLS the score head is trained in full and saved with the adapter; without either of the two it
    is lost, and reloaded scores change.

    Args:
        score_token_id: the token whose row of the embedding is trained, and saved with the adapter.
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
        trainable_token_indices=None if score_token_id is None else [score_token_id],
    )


def apply_lora(
    model: PreTrainedModel, settings: LoraSettings | None, *, task_type: TaskType, score_token_id: int | None = None
) -> PreTrainedModel | PeftModel:
    """The model with adapters that train in float32; the model itself where `settings` is None."""
    config = peft_config(settings, task_type=task_type, score_token_id=score_token_id)
    return model if config is None else _trained_in_float32(get_peft_model(model, config))


def freeze_all_but_head(model: PreTrainedModel, *, score_token_id: int | None = None) -> PeftModel:
    """The model as an adapter without layers: its score head trains in float32, and is all that a checkpoint holds.

    Args:
        score_token_id: the token whose row of the embedding is saved with the head. It is not trained: its gradient
            would need the backward of the whole model.
    """
    config = LoraConfig(
        target_modules=DUMMY_TARGET_MODULES,
        task_type="SEQ_CLS",
        modules_to_save=[SCORE_HEAD],
        trainable_token_indices=None if score_token_id is None else [score_token_id],
    )
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "trainable_tokens" in name:
            parameter.requires_grad_(False)
    return _trained_in_float32(adapted)


def _trained_in_float32(adapted: PeftModel) -> PeftModel:
    """PEFT raises adapters to float32, but not the copies of modules_to_save: in bf16 small updates would be lost."""
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
        if isinstance(config.target_modules, set):
            # It hashes differently in each process: sorted, the same run writes the same file.
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


def max_positions(model: torch.nn.Module) -> int | None:
    """Tokens that the model has positions for; None where its configuration names no end, as with ALiBi."""
    config: Any = model.config
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if found is None else int(found)


def check_finite(model: torch.nn.Module, *, name: str) -> None:
    """Raise DivergedError where a weight of the model is NaN or infinite; names the weight."""
    for parameter_name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise DivergedError(f"{name}: the weight {parameter_name} is not finite. The model cannot be used.")


def _ready(model: PreTrainedModel, folder: Path, *, device: torch.device | str) -> PreTrainedModel:
    check_finite(model, name=str(folder))
    return model.to(device).eval()
