"""LoRA adapters: apply them for training, and load reward models that were saved as an adapter."""

import warnings
from pathlib import Path
from typing import Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils.constants import DUMMY_TARGET_MODULES
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.names import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, BASE_FOLDER
from containers.formatting import one_line
from containers.harness.errors import BadConfigError, MissingPrerequisiteError
from containers.models.score_token import give_embedding_row
from containers.models.weights import SCORE_HEAD, first_of, load_weights, require_trunk


def is_adapted_model(folder: Path) -> bool:
    """Whether the folder holds an adapter, with its base model in `base/`."""
    return (folder / ADAPTER_CONFIG_FILE).is_file()


def load_adapted_model(folder: Path, *, dtype: torch.dtype) -> PreTrainedModel:
    """Load the base model, merge the adapter into it, and take the adapter's score head; on the CPU.

    Args:
        folder: adapter files, with the base model in `base/`.

    Raises:
        MissingPrerequisiteError: the adapter has no score head, does not fit its base model, or one of the two is
            missing or damaged.
    """
    base_folder = folder / BASE_FOLDER
    if not base_folder.is_dir():
        raise MissingPrerequisiteError(f"{folder} is an adapter without its base model, which must be in `base`.")
    _demand_head(_saved_names(folder), folder)
    base, missing = load_weights(AutoModelForSequenceClassification, base_folder, dtype=dtype, num_labels=1)
    require_trunk(missing, folder=base_folder)
    merged: PreTrainedModel = put_adapter_on(base, folder).merge_and_unload()
    # The head is saved in float32, and would stay float32 on a trunk in bfloat16.
    return merged.to(dtype)


def put_adapter_on(base: PreTrainedModel, folder: Path, *, learns: bool = False) -> PeftModel:
    """Return the base model with the saved adapter and its score head, on the base model's device.

    Raises:
        MissingPrerequisiteError: the adapter has no score head, does not fit this base model, or is damaged.
    """
    saved = _saved_names(folder)
    _demand_head(saved, folder)
    try:
        settings = LoraConfig.from_pretrained(str(folder))
        for token_id in _trained_tokens(settings):
            give_embedding_row(base, token_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights that do not fit are refused below
            adapted = PeftModel.from_pretrained(base, str(folder), is_trainable=learns, torch_device=str(base.device))
    except Exception as error:  # whatever peft raises for settings and shapes that do not fit
        raise MissingPrerequisiteError(
            f"The adapter in {folder} cannot be applied to its base model: {one_line(str(error), 300)}. Name the right "
            "base model with --base, or reward_model.base in a run."
        ) from error
    _demand_fit(adapted, saved, folder)
    return adapted


def _trained_tokens(settings: LoraConfig) -> list[int]:
    """Return ids of the tokens whose embedding rows are saved with the adapter: the base has no score token."""
    named = settings.trainable_token_indices or []
    ids = named.get("embed_tokens", []) if isinstance(named, dict) else named
    return sorted(int(token_id) for token_id in ids)


def _saved_names(folder: Path) -> frozenset[str]:
    path = folder / ADAPTER_WEIGHTS_FILE
    try:
        with safe_open(path, framework="pt") as tensors:
            return frozenset(tensors.keys())
    except Exception as error:  # a missing file, or what safetensors raises for a damaged one
        raise MissingPrerequisiteError(f"The adapter's weights {path} cannot be read: {error}") from error


def _demand_head(saved: frozenset[str], folder: Path) -> None:
    wanted = f"{SCORE_HEAD}.weight"
    if not any(name == wanted or name.endswith(f".{wanted}") for name in saved):
        raise MissingPrerequisiteError(
            f"The adapter in {folder} holds no {wanted}: its scores would come from a random head. Save it with task "
            f"type SEQ_CLS, or with modules_to_save [{SCORE_HEAD}]."
        )


def _demand_fit(adapted: PeftModel, saved: frozenset[str], folder: Path) -> None:
    """Refuse missing or surplus adapter weights: PEFT warns of missing ones, and drops those without a place."""
    wanted = frozenset(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    lost = sorted(wanted - saved)
    if lost:
        raise MissingPrerequisiteError(f"The adapter in {folder} lacks weights for its base model: {first_of(lost)}.")
    homeless = sorted(saved - wanted - frozenset(adapted.state_dict()))
    if homeless:
        raise MissingPrerequisiteError(
            f"The adapter in {folder} was made for another base model: this one has no place for {first_of(homeless)}. "
            f"Name the right one with --base, or reward_model.base in a run."
        )


TaskType = Literal["CAUSAL_LM", "SEQ_CLS"]


def peft_config(
    settings: LoraSettings | None, *, task_type: TaskType, score_token_id: int | None = None
) -> LoraConfig | None:
    """Return LoRA on the configured linear layers; None if the whole model is trained.

    With task type SEQ_CLS the score head is trained in full and saved with the adapter. Without the task type or
    `modules_to_save` the head is lost, and reloaded scores change.

    Args:
        score_token_id: the token whose embedding row is trained, and saved with the adapter.
    """
    if settings is None:
        return None
    return LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        use_rslora=settings.use_rslora,
        target_modules=list(settings.targets) or "all-linear",
        exclude_modules=list(settings.exclude) or None,
        task_type=task_type,
        modules_to_save=[SCORE_HEAD] if task_type == "SEQ_CLS" else None,
        trainable_token_indices=None if score_token_id is None else [score_token_id],
    )


def apply_lora(
    model: PreTrainedModel, settings: LoraSettings | None, *, task_type: TaskType, score_token_id: int | None = None
) -> PreTrainedModel | PeftModel:
    """Return the model with adapters that train in float32; the model itself if `settings` is None.

    Raises:
        BadConfigError: a named layer is none of the model's linear layers, or none is left.
    """
    if settings is not None:
        _demand_layers(model, settings)
    config = peft_config(settings, task_type=task_type, score_token_id=score_token_id)
    return model if config is None else trained_in_float32(get_peft_model(model, config))


def _demand_layers(model: PreTrainedModel, settings: LoraSettings) -> None:
    """Refuse names that PEFT would ignore, or that it would refuse with a list of its own."""
    head = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head and name != SCORE_HEAD
    ]
    ends = sorted({name.rsplit(".", 1)[-1] for name in linear})
    for key, names in (("targets", settings.targets), ("exclude", settings.exclude)):
        unknown = [name for name in names if not any(_ends_with(layer, name) for layer in linear)]
        if unknown:
            raise BadConfigError(
                f"lora.{key} names {', '.join(unknown)}: {type(model).__name__} has no such linear layer. It has "
                f"{', '.join(ends)}."
            )
    aimed = [name for name in linear if not settings.targets or any(_ends_with(name, end) for end in settings.targets)]
    if all(any(_ends_with(name, end) for end in settings.exclude) for name in aimed):
        raise BadConfigError("lora.exclude leaves no layer that would get an adapter. Name fewer.")


def _ends_with(layer: str, name: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


def freeze_all_but_head(model: PreTrainedModel, *, score_token_id: int | None = None) -> PeftModel:
    """Wrap the model as an adapter without layers: only its score head trains (in float32) and is in checkpoints.

    Args:
        score_token_id: the token whose embedding row is saved with the head. The row is not trained: its gradient
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
    return trained_in_float32(adapted)


def trained_in_float32(adapted: PeftModel) -> PeftModel:
    """Cast trained weights to float32: PEFT does not cast `modules_to_save`, and bf16 would lose small updates."""
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted
