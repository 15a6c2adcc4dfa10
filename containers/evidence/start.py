"""Start the evidence of a training: its held-out prompts, its judges, and what writes on them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.configs.parts.evidence import num_held_out, steps_between_looks
from containers.contracts.configs.parts.rewards import RewardModelTerm
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.schedule import ResolvedSchedule
from containers.distributed.ranks import own_rank
from containers.evidence.callback import EvidenceCallback
from containers.evidence.looks import HeldOut, LogRatios, NamedJudge, Write
from containers.evidence.progress import Progress
from containers.evidence.reward_model_meters import RewardModelMeters
from containers.harness.context import StageContext
from containers.judges.base import start_judge
from containers.models.offloading import present
from containers.packing.logps import causal_of
from containers.rewards.base import SeveralRewards, StartedTerm, StateReward
from containers.rollouts.engines import Writing
from containers.rollouts.generate import Completion, completion_logprobs, sampled_completions
from containers.rollouts.prompts import PolicyPrompt, PolicyPrompts


def hold_out(
    context: StageContext, config: TrainPolicyConfig, prompts: PolicyPrompts
) -> tuple[PolicyPrompts, tuple[PolicyPrompt, ...]]:
    """Return the prompts that train, and those that only serve the looks; notes where there are too few of them."""
    if config.evidence is None or not config.evidence.judges:
        return prompts, ()
    number = num_held_out(config.evidence, len(prompts.prompts))
    if not number:
        context.recorder.note(
            f"Warning: {len(prompts.prompts)} prompts are too few to hold some out, so no judge looks at the policy "
            "while it trains. Use more prompts, or fewer in train_policy.evidence.num_prompts."
        )
        return prompts, ()
    rng = random.Random(context.spec.seed)  # noqa: S311  (a sample, not a secret)
    chosen = set(rng.sample(range(len(prompts.prompts)), number))
    parts: tuple[list[PolicyPrompt], list[PolicyPrompt]] = ([], [])
    for place, prompt in enumerate(prompts.prompts):
        parts[place in chosen].append(prompt)
    return replace(prompts, prompts=tuple(parts[0])), tuple(parts[1])


def start_judges(
    context: StageContext, config: TrainPolicyConfig, held_out: Sequence[PolicyPrompt]
) -> tuple[NamedJudge, ...]:
    """Start the judges that look, if there is anything to look at; those before one that cannot start are closed.

    One that took part in the training would confirm what it taught, unless it compares with reference answers.
    """
    if config.evidence is None or not held_out:
        return ()
    judges: list[NamedJudge] = []
    try:
        for judge in config.evidence.judges:
            judges.append(NamedJudge(judge.name, start_judge(context, config, judge)))
            part = judges[-1].started.part_in_training()
            if part and not judge.needs_answer:
                judges.pop().started.close()
                context.recorder.note(f"Warning: judge {judge.name} does not look at the policy in training: {part}.")
    except BaseException:
        close_judges(judges)
        raise
    return tuple(judges)


def close_judges(judges: Sequence[NamedJudge]) -> None:
    """End what the judges started."""
    for judge in judges:
        judge.started.close()


def evidence_callback(
    context: StageContext,
    config: TrainPolicyConfig,
    judges: Sequence[NamedJudge],
    held_out: Sequence[PolicyPrompt],
    *,
    rewards: Sequence[StartedTerm],
    write: Write,
    log_ratios: LogRatios | None,
    opening: str,
    schedule: ResolvedSchedule,
    untrained: Callable[[], PreTrainedModel],
) -> EvidenceCallback | None:
    """Return the callback that looks while training; None where neither a judge nor a meter could decide anything.

    Args:
        log_ratios: None where there is no reference.
        untrained: loads the start model.
    """
    settings = config.evidence
    learnt = any(isinstance(term, RewardModelTerm) for term in config.rewards)
    if settings is None or not (judges or learnt):
        return None
    looks = None
    if judges:
        looks = HeldOut(
            prompts=held_out,
            judges=judges,
            rewards=rewards,
            write=write,
            log_ratios=log_ratios,
            num_pairs=settings.num_pairs,
            opening=opening,
            seed=context.spec.seed,
        )
    return EvidenceCallback(
        progress=Progress(settings, judge=judges[0].name if judges else ""),
        held_out=looks,
        recorder=context.recorder,
        every=steps_between_looks(
            settings,
            num_steps=schedule.num_steps,
            completions_a_step=context.spec.batch.global_batch_size / config.num_iterations,
        )
        if judges
        else schedule.save_steps,
        untrained=untrained,
        reward_model=_reward_model_meters(rewards, seed=context.spec.seed),
    )


def _reward_model_meters(rewards: Sequence[StartedTerm], *, seed: int) -> RewardModelMeters | None:
    """Return the meters of the first reward model among the rewards."""
    for one in rewards:
        found = one.reward.members[0] if isinstance(one.reward, SeveralRewards) else one.reward
        if isinstance(found, StateReward):
            return RewardModelMeters(found, seed=seed)
    return None


class AwaitsJudge(TrainerCallback):  # type: ignore[misc]
    """Ends the stage after the save of a step whose look waits for its judge; comes after all other callbacks."""

    def __init__(self, evidence: EvidenceCallback) -> None:
        self._evidence = evidence

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Raise JudgeAwaitedError if a look waits."""
        self._evidence.after_save()


def writer(tokenizer: Any, config: TrainPolicyConfig, writing: Writing, *, rows_at_a_time: int) -> Write:
    """Return what writes a completion for each prompt as in training; the random numbers of training stay as they are.

    Args:
        writing: context in which the policy's `generate` is the rollout engine's.
    """

    def write(policy: Any, prompts: Sequence[PolicyPrompt], seed: str) -> list[Completion]:
        found: list[Completion] = []
        causal = causal_of(policy)
        devices = [causal.device] if causal.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), writing(policy):
            for start in range(0, len(prompts), rows_at_a_time):
                own = random.Random(f"{seed} {own_rank()} {start}")  # noqa: S311  (completions, not a secret)
                torch.manual_seed(own.getrandbits(62))
                found += sampled_completions(
                    causal,
                    tokenizer,
                    [prompt.token_ids for prompt in prompts[start : start + rows_at_a_time]],
                    max_new_tokens=config.max_completion_length,
                    temperature=config.temperature,
                )
        return found

    return write


def log_ratios_to(
    reference: PreTrainedModel | None, config: TrainPolicyConfig, *, pad_id: int, batch_size: int
) -> LogRatios | None:
    """Return what measures log policy − log start model of completions; None where every weight is trained alone.

    Args:
        reference: the start model; None: the policy without its adapters, if it has some.
    """
    if reference is None and config.lora is None:
        return None

    @torch.no_grad()
    def measured(policy: Any, completions: Sequence[Completion]) -> list[float]:
        def logps(model: Any) -> list[float]:
            return completion_logprobs(
                model, completions, pad_id=pad_id, batch_size=batch_size, temperature=config.temperature
            )

        own = logps(policy)
        with policy.disable_adapter() if reference is None else present(reference):
            others = logps(policy if reference is None else reference)
        return [one - other for one, other in zip(own, others, strict=True)]

    return measured
