"""What contradicts itself in the adapters of a training, and in how its frozen weights are held."""

from collections.abc import Iterator

from containers.contracts.configs.parts.training import VLLM_LORA_RANKS, LoraSettings, Quantization
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig


def adapter_contradictions(
    config: TrainSftConfig | TrainRewardModelConfig | TrainDpoConfig | TrainPolicyConfig, *, divides: bool
) -> Iterator[tuple[str, str]]:
    """Yield for each mistake: its key in the training's section, and a sentence.

    Args:
        divides: whether the ranks divide the model among them.
    """
    if isinstance(config, TrainDpoConfig | TrainPolicyConfig):
        adapters = {"lora": config.lora}
        if isinstance(config, TrainPolicyConfig):
            adapters["critic.lora"] = config.critic.lora
        yield from _with_dropout(adapters)
    if isinstance(config, TrainPolicyConfig):
        yield from _refused_divided(config)
        if config.rollout_engine == "vllm":
            yield from _refused_by_vllm(config)
    if config.optimizer.offload and not divides:
        own = "train_policy" if isinstance(config, TrainPolicyConfig) else "gpu_profile"
        yield (
            "optimizer.offload",
            f"needs {own}.distribution fsdp: torch keeps only a divided model's weights and moments in host memory. "
            "Divide the model, or leave this out.",
        )
    if config.quantization is None:
        return
    if config.lora is None:
        yield (
            "quantization",
            f"{config.quantization}: weights of so few bits take no gradient, and without `lora` every weight is "
            "trained. Train adapters, or leave quantization out.",
        )
    if divides and config.quantization == "int8":
        yield (
            "quantization",
            "int8 with `distribution: fsdp`: weights of whole numbers cannot be divided. Use nf4, or `distribution: "
            "ddp`, where each GPU has all of them.",
        )


def _with_dropout(adapters: dict[str, LoraSettings | None]) -> Iterator[tuple[str, str]]:
    for key, lora in adapters.items():
        if lora is not None and lora.dropout:
            yield (
                f"{key}.dropout",
                f"{lora.dropout:g}: this training compares probabilities or values of the same text at two times, and "
                "dropout would change them by chance. Leave it out; train_sft and train_reward_model have it.",
            )


def _refused_divided(config: TrainPolicyConfig) -> Iterator[tuple[str, str]]:
    if config.distribution == "ddp":
        return
    if config.has_critic:
        yield (
            "distribution",
            f"fsdp with algorithm {config.algorithm}: its critic is not divided. Use ddp, or an algorithm without a "
            "critic (rloo, grpo).",
        )
    if config.rollout_engine == "vllm" and config.lora is not None:
        yield (
            "distribution",
            "fsdp with rollout_engine vllm and adapters: vLLM gets these from a rank that has all of them. Use ddp, or "
            "shared_prompts or continuous_batching.",
        )


def _refused_by_vllm(config: TrainPolicyConfig) -> Iterator[tuple[str, str]]:
    quantization: Quantization | None = config.quantization
    if config.lora is not None and config.lora.r > VLLM_LORA_RANKS[-1]:
        yield "lora.r", f"{config.lora.r} is more than {VLLM_LORA_RANKS[-1]}, the largest rank that vLLM takes."
    if quantization is not None:
        yield (
            "quantization",
            f"{quantization} with rollout_engine vllm: vLLM would load the weights as they are in their files, which "
            "is another policy than the one that learns. Use shared_prompts, or leave quantization out.",
        )
