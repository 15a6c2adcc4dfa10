"""The shape that the self-test measures, and the plan's own figures for what it measured."""

from dataclasses import dataclass, replace

from containers.contracts.configs.parts.critic import CriticSettings
from containers.contracts.configs.parts.rewards import RegexTerm
from containers.contracts.configs.selftest import Measured, Measurement
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import config_profile, stage_batch
from tasks.config.run import RunConfig
from tasks.plan.estimates import CUDA_CONTEXT, training_memory, training_work
from tasks.plan.figures import PlanContext
from tasks.plan.head import Head
from tasks.plan.inputs.data import DataSize
from tasks.plan.inputs.model_shape import ModelShape, total_parameters
from tasks.plan.inputs.models import FoundShape, find_model_shape
from tasks.plan.load import training_load
from tasks.plan.policy import completions_of, launches, policy_load, policy_memory

# A processor computes models up to this size in the time that a self-test has.
_MOST_PARAMETERS_ON_CPU = 20_000_000
_SMALL = ModelShape(
    model_type="qwen3",
    num_hidden_layers=2,
    hidden_size=64,
    intermediate_size=192,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    vocab_size=512,
    tie_word_embeddings=True,
)
_SHORT_TOKENS = 64
_NO_DATA = DataSize("", *(None,) * 8)


@dataclass(frozen=True)
class Subject:
    """What the self-test measures in the shape of the run's model.

    Attributes:
        shape: None: it is not known, and the steps are not run.
        words: of the shape, for people.
        note: how it differs from the run's model, or why it is not known; empty: it is the run's.
        reward, policy: the stages' configurations; the policy's rewards are a rule, as no reward model is at hand.
        rollouts: the policy's with the run's own engine, and without a critic, as nothing is learnt; `policy` has an
            engine that needs no files.
    """

    run: RunConfig
    shape: FoundShape | None
    words: str
    note: str
    reward: TrainRewardModelConfig
    policy: TrainPolicyConfig | None
    rollouts: TrainPolicyConfig | None

    @property
    def is_of_the_run(self) -> bool:
        """Whether the shape is that of the run's model."""
        return self.shape is not None and not self.note

    def context(self, profile: GpuProfile) -> PlanContext:
        """The plan's input, without data: every figure is for full lengths."""
        run = self.run.model_copy(update={"train_policy": self.policy} if self.policy else {})
        return PlanContext(run, profile, _NO_DATA, self.shape, lambda stage: "")


def subject_of(run: RunConfig) -> Subject:
    """The run's model, or on a processor a small one where that is too large or not known.

    Raises:
        ConfigError: the model's config.json is there, and cannot be used.
    """
    found, reward = find_model_shape(run), run.train_reward_model
    policy = _without_reward_model(run.policy_on_rewards)
    policy, rollouts = _without_files(policy), _without_critic(policy)
    if found is None and run.gpu_profile.num_gpus:
        note = "the shape of the run's model is not known here: `rlhf fetch` it first"
        return Subject(run, None, "unknown", note, reward, policy, rollouts)
    if found is not None and (
        run.gpu_profile.num_gpus or total_parameters(found.shape, head="language") <= _MOST_PARAMETERS_ON_CPU
    ):
        return Subject(run, found, found.words, "", reward, policy, rollouts)
    why = "is not known here" if found is None else "is too large for a processor"
    return Subject(
        run,
        FoundShape(_SMALL, "a small Qwen3", "exact"),
        f"a small Qwen3 with short texts, as the run's own model {why}",
        f"Of a small Qwen3 with short texts: the run's own model {why}.",
        reward.model_copy(update={"max_length": min(reward.max_length, _SHORT_TOKENS), "pack_tokens": None}),
        policy and policy.model_copy(update={**_short_completions(policy), "pack_tokens": None}),
        rollouts and rollouts.model_copy(update={**_short_completions(rollouts), "pack_tokens": None}),
    )


def _without_reward_model(policy: TrainPolicyConfig | None) -> TrainPolicyConfig | None:
    """The configuration with a rule as reward, judged by no model."""
    if policy is None:
        return None
    rule = RegexTerm.model_validate({"kind": "outcome", "pattern": "[02468]$"})
    return policy.model_copy(update={"rewards": (rule,), "evidence": None})


def _without_critic(policy: TrainPolicyConfig | None) -> TrainPolicyConfig | None:
    """The configuration with an algorithm that needs no critic: what writes is the same."""
    if policy is None or not policy.has_critic:
        return policy
    return policy.model_copy(update={"algorithm": "grpo", "critic": CriticSettings()})


def _without_files(policy: TrainPolicyConfig | None) -> TrainPolicyConfig | None:
    """The configuration with an engine that needs no files."""
    if policy is None or policy.rollout_engine != "vllm":
        return policy
    return policy.model_copy(update={"rollout_engine": "shared_prompts", "vllm_gpus": 0})


def _short_completions(policy: TrainPolicyConfig) -> dict[str, int]:
    names = ("max_prompt_length", "max_completion_length")
    return {name: min(getattr(policy, name), _SHORT_TOKENS // 2) for name in names}


def beside_plan(measured: Measured, subject: Subject, profile: GpuProfile) -> Measured:
    """The figures of a step with the plan's for the same tokens: memory without CUDA itself, and operations.

    On a processor memory is that of the whole program, which the plan does not know so finely.
    """
    if measured.probe == "rollouts":
        return _of_vllm(measured, subject, profile)
    tokens = measured.one("largest_pack")
    if tokens is None or not subject.is_of_the_run or not profile.num_gpus:
        return measured
    if measured.probe == "reward_step":
        more = _of_reward(measured, subject, profile, int(tokens))
    else:
        more = _of_policy(measured, subject, profile, int(tokens))
    return measured.model_copy(update={"values": (*measured.values, *more)})


def _of_reward(measured: Measured, subject: Subject, profile: GpuProfile, tokens: int) -> list[Measurement]:
    context, config = subject.context(profile), subject.reward
    own = measured.one("step_of_a_rank") or 0.0
    load = training_load(context, config, forward_tokens=tokens, mean_tokens=own, judged_tokens=0)
    if load is None:
        return []
    memory = training_memory(load, profile)
    return [
        _planned(memory),
        Measurement(name="work", value=training_work(load, profile, sequences=1).operations, unit="FLOP"),
    ]


def _of_policy(measured: Measured, subject: Subject, profile: GpuProfile, tokens: int) -> list[Measurement]:
    config = subject.policy
    if config is None:
        return []
    own = config_profile(profile, config)
    context, batch = subject.context(own), stage_batch(config, own)
    written = completions_of(context, config, batch)
    load = policy_load(context, config, batch, written)
    if load is None:
        return []
    load = replace(load, forward_tokens=tokens)
    is_whole, in_packs = config.lora is None, not written.why_padded
    head = Head(load.shape, own, tokens=written.predicted, is_trained=is_whole, in_packs=in_packs)
    memory = training_memory(load, own, {"logits": head.memory_bytes, **policy_memory(context, config, batch, load)})
    times = launches(context, config) or 1.0
    return [
        _planned(memory),
        Measurement(name="layers", value=load.shape.num_hidden_layers, unit="layers"),
        Measurement(name="launches", value=times, unit="times a plain model's"),
    ]


def _of_vllm(measured: Measured, subject: Subject, profile: GpuProfile) -> Measured:
    """What vLLM was measured on, if a plan can use it: a card, and the shape of the run."""
    config = subject.rollouts
    # All weights travel through files with every batch, which would be taken for writing.
    by_vllm = config is not None and config.rollout_engine == "vllm" and config.lora is not None
    if not by_vllm or measured.one("engine_token") is None:
        return measured
    if not subject.is_of_the_run or subject.shape is None or not profile.num_gpus:
        return measured
    layers = Measurement(name="layers", value=subject.shape.shape.num_hidden_layers, unit="layers")
    return measured.model_copy(update={"values": (*measured.values, layers)})


def _planned(memory: dict[str, int]) -> Measurement:
    held = sum(count for name, count in memory.items() if name != CUDA_CONTEXT)
    return Measurement(name="planned", value=held, unit="bytes")
