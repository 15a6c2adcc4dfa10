"""RLOO as a training program, with the KL to the start model in the reward."""

from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl import RLOOConfig

from containers.algorithms.rloo import PolicyTrainer, curve_metrics
from containers.algorithms.rloo_packing import plan_policy_packing
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import COMPLETIONS_FILE
from containers.contracts.outcome import Metric
from containers.contracts.schedule import ResolvedSchedule, ScheduleError, resolve_schedule
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import is_first_rank
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
from containers.packing.kernel import try_kernels
from containers.rewards.base import PolicyReward, start_reward
from containers.rollouts.completion_log import CompletionLog
from containers.rollouts.engines import start_rollouts
from containers.rollouts.generate import turn_end_ids
from containers.rollouts.prompts import (
    check_lengths,
    note_policy_template,
    read_evaluation_prompts,
    read_training_prompts,
    shuffled_passes,
)
from containers.training.arguments import common_arguments
from containers.training.checkpoints import checkpoint_step
from containers.training.program import Training, save_causal_model
from containers.training.records import Prepared

_COMPLETION_LOG_FILE = "completions.jsonl"


class RlooTraining(Training[TrainPolicyConfig]):
    """RLOO training with the configured reward."""

    config_type = TrainPolicyConfig
    log: CompletionLog | None = None

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        return f"TRL RLOOTrainer, K = {self.config.num_generations}"

    def prepare(self) -> Prepared:
        """Load all that training needs, cheap checks first."""
        context, config = self.context, self.config
        try_kernels(compute_device(context.spec.profile))
        start, pairs = context.input_path("start_model"), context.input_path("pairs")
        self.tokenizer = load_tokenizer(start, origin=context.input("start_model").origin)
        num_rows = num_embedding_rows(start)
        prompts = read_training_prompts(pairs, self.tokenizer, config, num_rows=num_rows)
        read_evaluation_prompts(pairs, self.tokenizer, config, num_rows=num_rows)
        schedule_of = partial(resolve_policy_schedule, config, global_batch_size=context.spec.batch.global_batch_size)
        schedule_of(num_prompts=len(prompts.prompts))
        self.reward = start_reward(context, config)
        self.model = self.untrained_model()
        check_lengths(config, max_positions=position_limit(self.model), name="start model")
        note_policy_template(context, self.tokenizer, prompts.prompts)
        self.prompts = prompts = self.reward.scorable(context, prompts)
        asked = [prompt.token_ids for prompt in prompts.prompts]
        if prompts.left_out_text:
            context.recorder.note(prompts.left_out_text)
        self.schedule = schedule_of(num_prompts=len(asked))
        self.packing = plan_policy_packing(context, config, self.model, asked)
        self.rollouts = start_rollouts(context, config, self.model, asked)
        return Prepared(self.schedule, len(asked), prompts.num_over_long, prompts.num_without_row)

    def untrained_model(self) -> PreTrainedModel:
        """Load the start model, which is never divided."""
        profile, start = self.context.spec.profile, self.context.input_path("start_model")
        # Adapters train in float32 on a frozen base; a whole model trains in float32 under autocast.
        dtype = compute_dtype(profile) if self.config.lora else torch.float32
        model = load_causal_model(start, dtype=dtype, device=compute_device(profile), note=self.context.recorder.note)
        require_own_tokenizer(model, self.tokenizer, folder=start)
        return model

    def build_trainer(self, checkpoint: Path | None) -> PolicyTrainer:
        """Build TRL's trainer, with packed rows if the model supports them."""
        context, config, batch = self.context, self.config, self.packing.batch
        if is_first_rank():
            self.reward.record(context)
            path = context.checkpoints / _COMPLETION_LOG_FILE
            self.log = CompletionLog(path, resumed_from_step=checkpoint_step(checkpoint) or 0)
        common = common_arguments(
            context, optimizer=config.optimizer, schedule=self.schedule, batch=batch, evaluates=False
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
            self.reward,
            end_ids=turn_end_ids(self.model, self.tokenizer),
            missing_eos_penalty=config.missing_eos_penalty,
        )
        return self.packing.trainer(
            completion_log=self.log,
            num_logged_completions=config.num_logged_completions,
            writing=self.rollouts.writing,
            model=self.model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=self._training_order(),
            processing_class=self.tokenizer,
            callbacks=self.callbacks(checkpoint, exact_every=config.num_iterations),
            peft_config=peft_config(config.lora, task_type="CAUSAL_LM"),
            **self.packing.arguments,
        )

    def _training_order(self) -> Dataset:
        """Return the prompts of every step of the run, in order, as one epoch.

        TRL's checkpoints lack the sampler's random state, so a run resumed in a later epoch would draw the first
        epoch's order again. With one epoch this cannot happen.
        """
        prompts = self.prompts.prompts
        per_generation = self.context.spec.batch.global_batch_size // self.config.num_generations
        num_generations = -(-self.schedule.num_steps // self.config.num_iterations)
        order = shuffled_passes(len(prompts), length=num_generations * per_generation, seed=self.context.spec.seed)
        return Dataset.from_list([{"prompt": list(prompts[index].conversation)} for index in order])

    def save(self, trainer: PolicyTrainer) -> None:
        """Save `model/`, with adapters `adapter/`, and the kept completions."""
        if self.log is not None:
            self.log.write_parquet(self.context.output / COMPLETIONS_FILE)
            if self.log.num_unreadable:
                self.context.recorder.note(
                    f"{self.log.num_unreadable} unreadable lines were left out of {COMPLETIONS_FILE}."
                )
        save_causal_model(self.context, trainer.accelerator.unwrap_model(trainer.model), self.tokenizer)

    def metrics(self, trainer: PolicyTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return reward at start and end, and KL and lengths at the end."""
        return curve_metrics(trainer.state.log_history, num_steps=self.schedule.num_steps)

    def close(self) -> None:
        """Close the rollout engine."""
        self.rollouts.close()


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
