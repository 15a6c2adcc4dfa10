"""Settings that the training stages share: adapters, optimizer, schedule, and the help of shared keys."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from containers.contracts.base import Fraction, Frozen, Positive, Steps, Weight, Width

# Adapter ranks for which vLLM reserves memory; other ranks use the next larger one.
VLLM_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Default share of a GPU's memory for vLLM.
VLLM_FRACTION_BESIDE_TRAINING = 0.3
VLLM_FRACTION_ALONE = 0.9
# Completions that a vLLM of an evaluation writes at the same time on a GPU, as far as its cache holds them.
VLLM_SEQUENCES = 256
LONGEST = "Tokens of prompt plus completion; longer ones are left out and counted"
CHECKPOINTING = (
    "Compute activations again in the backward pass: less memory, more time. A number n: every n-th layer keeps its "
    "activations, the others compute them again"
)
QUANTIZATION = (
    "Hold the frozen weights in 4 bits (nf4) or 8 (int8) while adapters train; the published model has the dequantized "
    "weights with the adapters merged. null: in the profile's precision"
)
OPTIMIZER = "AdamW and its learning rate"
SCHEDULE = "How long, how often evaluated and saved"


Quantization = Literal["nf4", "int8"]


def _one_message(value: object, check: ValidatorFunctionWrapHandler) -> object:
    """Check, with one message in place of one for each type."""
    try:
        return check(value)
    except ValidationError as error:
        raise ValueError(
            f"`{value}` found, wanted true (every layer computes again), false (none), or a whole number n from 2 to "
            "1,000: all but every n-th."
        ) from error


# Whether layers compute their activations again in the backward; a number n: all but every n-th.
Checkpointing = Annotated[StrictBool | Annotated[int, Field(ge=2, le=1000)], WrapValidator(_one_message)]


def keeps_activations(layer: int, checkpointing: Checkpointing) -> bool:
    """Whether that layer, counted from 0, keeps its activations for the backward.

    Example: with 3, of six layers the third and the sixth.
    """
    return not checkpointing or (checkpointing is not True and (layer + 1) % checkpointing == 0)


def _that_reads_messages(value: str) -> str:
    if "messages" not in value:
        raise ValueError(
            f"`{value[:80]}` is no chat template: it never reads `messages`. Give a name in "
            f"configs/chat_templates, a .jinja file, or the text of a template."
        )
    return value


ChatTemplate = Annotated[str, AfterValidator(_that_reads_messages)]


# The end of a layer's name, as `q_proj`.
LayerName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]


class LoraSettings(Frozen):
    """Low-rank adapters on linear layers."""

    r: int = Field(64, ge=1, le=1024, description="Rank; 64 on all linear layers of Qwen3-8B is 174.6M parameters")
    alpha: Width = Field(128, ge=1, description="Scale; the update is multiplied by alpha / r")
    targets: tuple[LayerName, ...] = Field(
        (),
        max_length=64,
        description="Linear layers that get adapters, by the end of their names (`q_proj`); empty: all",
    )
    exclude: tuple[LayerName, ...] = Field((), max_length=64, description="Linear layers that get none, likewise")
    use_rslora: bool = Field(
        False, description="Multiply by alpha / √r instead, so that high ranks learn as fast (arXiv:2312.03732)"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of an adapter's inputs left out at random; train_sft and train_reward_model only, since the "
        "other trainings compare probabilities, to which it would add chance",
    )


class OptimizerSettings(Frozen):
    """AdamW and its schedule."""

    learning_rate: Positive = Field(1e-5, description="Peak learning rate")
    scheduler: Literal["linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup"] = Field(
        "cosine", description="Learning rate after the warm-up; `constant` has no warm-up"
    )
    minimum_learning_rate_fraction: Fraction = Field(
        0.1, description="Share of the peak at which `cosine_with_min_lr` ends; other schedulers do not read it"
    )
    warmup_fraction: Fraction = Field(0.03, description="Share of the steps spent warming up")
    weight_decay: Weight = Field(0.0, description="Of AdamW, decoupled from the gradient; 0: off")
    max_grad_norm: Positive = Field(1.0, description="A gradient with a larger norm is scaled down to it")
    offload: bool = Field(
        False,
        description="Keep trained weights, gradients and AdamW's moments in host memory, and compute the optimizer's "
        "step there: less memory, more time. Only where the ranks divide the model (distribution fsdp)",
    )


class TrainingSchedule(Frozen):
    """Length, evaluations and saves. Checked against the run's actual number of steps before it starts."""

    num_epochs: Positive = Field(1.0, description="Passes over the training data, unless max_steps is given")
    max_steps: Steps | None = Field(None, description="Optimizer steps; overrides num_epochs")
    eval_steps: Steps | None = Field(
        None,
        description="Evaluate every so many steps; null: a tenth of the run's steps, rounded down. train_policy "
        "evaluates nothing: there it is only the default of save_steps",
    )
    save_steps: Steps | None = Field(
        None,
        description="Save every so many steps, and at each evaluation that is the best so far; null: as eval_steps",
    )
    logging_steps: Steps = Field(1, description="A point of the curves every so many steps")
    save_total_limit: int = Field(
        3, ge=2, le=10_000, description="Checkpoints kept, beside the best one where the stage evaluates"
    )
