"""RLOO as a training program, with the KL to the start model in the reward."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import RLOOConfig

from containers.algorithms.rloo import PolicyTrainer, curve_metrics
from containers.algorithms.rloo_packing import plan_policy_packing
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import (
    COMPLETIONS_FILE,
)
from containers.contracts.outcome import Metric
from containers.contracts.schedule import ResolvedSchedule, ScheduleError, resolve_schedule
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import is_first_rank
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.models.chat_template import ANSWER_AT_ONCE
from containers.models.loading import (
    load_causal_model,
    load_tokenizer,
    num_embedding_rows,
    peft_config,
    position_limit,
    require_own_tokenizer,
)
from containers.packing.choice import Packing
from containers.packing.kernel import try_kernels
from containers.rewards.base import PolicyReward, Reward, start_reward
from containers.rollouts.completion_log import CompletionLog
from containers.rollouts.engines import Rollouts, start_rollouts
from containers.rollouts.generate import turn_end_ids
from containers.rollouts.prompts import (
    PolicyPrompts,
    check_lengths,
    note_policy_template,
    read_evaluation_prompts,
    read_training_prompts,
    shuffled_passes,
)
from containers.training.arguments import common_arguments
from containers.training.checkpoints import checkpoint_step
from containers.training.loop import training_callbacks
from containers.training.program import Prepared, Training, save_causal_model

_COMPLETION_LOG_FILE = "completions.jsonl"


@dataclass(frozen=True)
class _Parts:
    """All that is loaded before the trainer is built."""

    config: TrainPolicyConfig
    prompts: PolicyPrompts
    schedule: ResolvedSchedule
    tokenizer: Any
    model: Any
    reward: Reward
    packing: Packing[PolicyTrainer]
    rollouts: Rollouts


class RlooTraining(Training):
    """RLOO training with the configured reward."""

    parts: "_Parts"
    log: CompletionLog | None = None

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        return f"TRL RLOOTrainer, K = {self.parts.config.num_generations}"

    def prepare(self) -> Prepared:
        """Load all that training needs, cheap checks first."""
        try_kernels(compute_device(self.context.spec.profile))
        self.parts = _load(self.context)
        prompts = self.parts.prompts
        return Prepared(self.parts.schedule, len(prompts.prompts), prompts.num_over_long, prompts.num_without_row)

    def build_trainer(self, checkpoint: Path | None) -> PolicyTrainer:
        """Build TRL's trainer, with packed rows if the model supports them."""
        if is_first_rank():
            self.parts.reward.record(self.context)
            path = self.context.checkpoints / _COMPLETION_LOG_FILE
            self.log = CompletionLog(path, resumed_from_step=checkpoint_step(checkpoint) or 0)
        return _trainer(self.context, self.parts, self.log, checkpoint=checkpoint)

    def untrained_model(self) -> Any:
        """Return the start model, which is never divided."""
        return self.parts.model

    def save(self, trainer: PolicyTrainer) -> None:
        """Save `model/`, with adapters `adapter/`, and the kept completions."""
        if self.log is not None:
            self.log.write_parquet(self.context.output / COMPLETIONS_FILE)
            if self.log.num_unreadable:
                self.context.recorder.note(
                    f"{self.log.num_unreadable} unreadable lines were left out of {COMPLETIONS_FILE}."
                )
        save_causal_model(self.context, trainer.accelerator.unwrap_model(trainer.model), self.parts.tokenizer)

    def metrics(self, trainer: PolicyTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return reward at start and end, and KL and lengths at the end."""
        return curve_metrics(trainer.state.log_history, num_steps=self.parts.schedule.num_steps)

    def close(self) -> None:
        """Close the rollout engine."""
        self.parts.rollouts.close()


def resolve_policy_schedule(config: TrainPolicyConfig, *, num_prompts: int, global_batch_size: int) -> ResolvedSchedule:
    """Return the schedule with every number filled in; it saves only between two generated batches.

    A checkpoint holds neither the generated completions nor how often they were used, so an exact resume starts with a
    new batch: `save_steps` is a multiple of `num_iterations`. The default is raised to the next multiple.

    Raises:
        BadConfigError: the schedule cannot work in this number of steps, or `save_steps` breaks the rule.
    """
    wanted = config.schedule
    try:
        resolved = resolve_schedule(
            wanted, num_examples=num_prompts * config.num_generations, global_batch_size=global_batch_size
        )
        remainder = resolved.save_steps % config.num_iterations
        if remainder and wanted.save_steps is None and wanted.eval_steps is None:
            raised = min(resolved.save_steps + config.num_iterations - remainder, resolved.num_steps)
            return ResolvedSchedule(**{**vars(resolved), "save_steps": raised})
    except ScheduleError as error:
        raise BadConfigError(f"train_policy.schedule: {error}") from error
    if remainder:
        raise BadConfigError(
            f"train_policy.schedule.save_steps is {resolved.save_steps}, no multiple of num_iterations "
            f"{config.num_iterations}: a resume from the middle of a generated batch would not be exact. "
            f"Use {resolved.save_steps - remainder + config.num_iterations}."
        )
    return resolved


def _load(context: StageContext) -> _Parts:
    """Load all that training needs, cheap checks first."""
    config = context.spec.config
    if not isinstance(config, TrainPolicyConfig):
        raise BadConfigError(f"train_policy was given the config of {config.stage}.")
    start, pairs = context.input_path("start_model"), context.input_path("pairs")
    tokenizer = load_tokenizer(start, origin=context.input("start_model").origin)
    num_rows = num_embedding_rows(start)
    prompts = read_training_prompts(pairs, tokenizer, config, num_rows=num_rows)
    read_evaluation_prompts(pairs, tokenizer, config, num_rows=num_rows)
    schedule_of = partial(resolve_policy_schedule, config, global_batch_size=context.spec.batch.global_batch_size)
    schedule_of(num_prompts=len(prompts.prompts))
    reward = start_reward(context, config)
    profile = context.spec.profile
    device, dtype = compute_device(profile), compute_dtype(profile)
    # Adapters train in float32 on a frozen base; a whole model trains in float32 under autocast.
    model = load_causal_model(
        start, dtype=dtype if config.lora else torch.float32, device=device, note=context.recorder.note
    )
    require_own_tokenizer(model, tokenizer, folder=start)
    check_lengths(config, max_positions=position_limit(model), name="start model")
    note_policy_template(context, tokenizer, prompts.prompts)
    prompts = reward.scorable(context, prompts)
    asked = [prompt.token_ids for prompt in prompts.prompts]
    if prompts.left_out_text:
        context.recorder.note(prompts.left_out_text)
    return _Parts(
        config=config,
        prompts=prompts,
        schedule=schedule_of(num_prompts=len(prompts.prompts)),
        tokenizer=tokenizer,
        model=model,
        reward=reward,
        packing=plan_policy_packing(context, config, model, asked),
        rollouts=start_rollouts(context, config, model, asked),
    )


def _trainer(
    context: StageContext, parts: _Parts, log: CompletionLog | None, *, checkpoint: Path | None
) -> PolicyTrainer:
    config, batch = parts.config, parts.packing.batch
    common = common_arguments(
        context, optimizer=config.optimizer, schedule=parts.schedule, batch=batch, evaluates=False
    )
    arguments = RLOOConfig(
        **common,
        num_generations=config.num_generations,
        num_iterations=config.num_iterations,
        # One generated batch per optimizer step: with save_steps, that makes a resumed run exact.
        steps_per_generation=batch.gradient_accumulation_steps,
        max_completion_length=config.max_completion_length,
        temperature=config.temperature,
        top_p=config.top_p,
        beta=config.beta,
        gradient_checkpointing=config.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
        shuffle_dataset=False,
        chat_template_kwargs=ANSWER_AT_ONCE,
    )
    reward = PolicyReward(
        parts.reward,
        end_ids=turn_end_ids(parts.model, parts.tokenizer),
        missing_eos_penalty=config.missing_eos_penalty,
    )
    return parts.packing.trainer(
        completion_log=log,
        num_logged_completions=config.num_logged_completions,
        writing=parts.rollouts.writing,
        model=parts.model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=_training_order(context, parts),
        processing_class=parts.tokenizer,
        callbacks=training_callbacks(
            context, schedule=parts.schedule, checkpoint=checkpoint, exact_every=config.num_iterations
        ),
        peft_config=peft_config(config.lora, task_type="CAUSAL_LM"),
        **parts.packing.arguments,
    )


def _training_order(context: StageContext, parts: _Parts) -> Dataset:
    """Return the prompts of every step of the run, in order, as one epoch.

    TRL's checkpoints lack the sampler's random state, so a run resumed in a later epoch would draw the first epoch's
    order again. With one epoch this cannot happen.
    """
    prompts = parts.prompts.prompts
    per_generation = context.spec.batch.global_batch_size // parts.config.num_generations
    num_generations = -(-parts.schedule.num_steps // parts.config.num_iterations)
    order = shuffled_passes(len(prompts), length=num_generations * per_generation, seed=context.spec.seed)
    return Dataset.from_list([{"prompt": list(prompts[index].conversation)} for index in order])
