"""What of a model is trained: adapters on its layers, its score head alone, or all of it."""

from typing import Literal

from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.constants import DUMMY_TARGET_MODULES
from transformers import PreTrainedModel

from containers.contracts.configs.training import LoraSettings
from containers.models.weights import SCORE_HEAD

TaskType = Literal["CAUSAL_LM", "SEQ_CLS"]


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
