"""The training of a policy by any on-policy algorithm: what it needs, its trainer, and what it leaves."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from peft import PeftModel
from transformers import PreTrainedModel
from trl.trainer.utils import disable_dropout_in_model

from containers.algorithms.policy_packing import plan_policy_packing
from containers.algorithms.policy_rollouts import PolicyRollouts
from containers.algorithms.policy_settings import refuse_contradictions, resolve_policy_schedule
from containers.algorithms.policy_state import PolicyStateCallback, restore_policy_state
from containers.algorithms.policy_step import PolicyStep
from containers.algorithms.policy_trainer import PolicyTrainer, StepNumbers, curve_metrics
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import COMPLETION_LOG_FILE, COMPLETIONS_FILE, EVIDENCE_FILE
from containers.contracts.outcome import Metric
from containers.contracts.schedule import (
    Minibatches,
    plan_minibatches,
)
from containers.critics.critic import Critic
from containers.critics.critic_model import start_critic
from containers.distributed.devices import compute_device
from containers.distributed.ranks import is_first_rank, own_rank
from containers.evidence.callback import EvidenceCallback
from containers.evidence.looks import NamedJudge
from containers.evidence.start import (
    AwaitsJudge,
    close_judges,
    evidence_callback,
    hold_out,
    log_ratios_to,
    start_judges,
    writer,
)
from containers.formatting import size
from containers.harness.context import StageContext
from containers.models.loading import apply_lora, load_tokenizer, num_embedding_rows, position_limit
from containers.models.offloading import offload
from containers.packing.kernel import try_kernels
from containers.packing.logps import add_logps, causal_of
from containers.rewards.base import StartedTerm, close_rewards, start_rewards
from containers.rewards.policy_reward import PolicyReward
from containers.rewards.trial import try_rewards
from containers.rollouts.completion_log import CompletionLog
from containers.rollouts.engines import Rollouts, start_rollouts
from containers.rollouts.prompt_templates import note_policy_template, opening_of
from containers.rollouts.prompts import PromptOrder, check_lengths, read_evaluation_prompts, read_training_prompts
from containers.rollouts.sampling_check import start_check
from containers.scoring.copies import TriedCopies
from containers.training.arguments import completion_arguments
from containers.training.causal_copies import save_causal_model, tried_causal_copies
from containers.training.checkpoints import checkpoint_step
from containers.training.program import Training
from containers.training.records import Prepared
from containers.training.sharding import divides_model
from containers.training.start_model import load_start_model


class PolicyTraining(Training[TrainPolicyConfig]):
    """Training of a policy by the configured algorithm and reward."""

    config_type = TrainPolicyConfig
    log: CompletionLog | None = None
    rewards: tuple[StartedTerm, ...] = ()
    rollouts: Rollouts | None = None
    judges: tuple[NamedJudge, ...] = ()
    evidence: EvidenceCallback | None = None
    critic: Critic | None = None
    reference: PreTrainedModel | None = None

    @property
    def minibatches(self) -> Minibatches:
        """How a rollout is divided into updates."""
        config = self.config
        return plan_minibatches(
            config.rollout_batch_size,
            global_batch_size=self.context.spec.batch.global_batch_size,
            epochs=config.num_iterations,
        )

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in the report."""
        return f"{self.config.algorithm}, K = {self.config.num_generations}, beta {self.config.method.beta:g}"

    def prepare(self) -> Prepared:
        """Load all that training needs, cheap checks first."""
        context, config = self.context, self.config
        refuse_contradictions(config)
        try_kernels(compute_device(context.spec.profile))
        start, folder = context.input_path("start_model"), context.input_path("prompts")
        self.tokenizer = load_tokenizer(start, origin=context.input("start_model").origin)
        num_rows = num_embedding_rows(start)
        prompts = read_training_prompts(folder, self.tokenizer, config, num_rows=num_rows)
        read_evaluation_prompts(folder, self.tokenizer, config, num_rows=num_rows)
        schedule_of = partial(resolve_policy_schedule, config, global_batch_size=context.spec.batch.global_batch_size)
        schedule_of(num_prompts=len(prompts.prompts))
        self.prompts = prompts
        self.try_copies()
        self.rewards = start_rewards(context, config)
        offloaded = sum(one.reward.offload() for one in self.rewards) if config.offload_frozen else 0
        self.model = self._start_model()
        check_lengths(config, max_positions=position_limit(self.model), name="start model")
        self.reference = self._reference()
        if config.keeps_start_model:
            for one in self.rewards:
                one.reward.on_base(self.model if self.reference is None else self.reference)
        if config.offload_frozen:
            offloaded += 0 if self.reference is None else offload(self.reference)
            held = f"{size(offloaded)} of frozen models are in host memory on each rank while they are not used."
            context.recorder.note(held)
        note_policy_template(context, self.tokenizer, prompts.prompts, thinks=config.enable_thinking)
        for one in self.rewards:
            prompts = one.reward.scorable(context, prompts)
        prompts, self.held_out = hold_out(context, config, prompts)
        self.judges = start_judges(context, config, self.held_out)
        self.prompts = prompts
        self.opening = opening_of(self.tokenizer, thinks=config.enable_thinking)
        try_rewards(context, config, self.rewards, prompts.prompts, opening=self.opening)
        asked = [prompt.token_ids for prompt in prompts.prompts]
        if prompts.left_out_text:
            context.recorder.note(prompts.left_out_text)
        self.schedule = schedule_of(num_prompts=len(asked))
        self.cut = plan_policy_packing(context, config, self.model, asked)
        self.rollouts = start_rollouts(context, config, self.model, asked)
        self.writing = self.rollouts.writing
        return Prepared(self.schedule, len(asked), prompts.num_over_long, prompts.num_without_row)

    def _start_model(self) -> PreTrainedModel:
        """Load the start model without adapters."""
        config = self.config
        return load_start_model(
            self.context, self.tokenizer, whole=config.lora is None, quantization=config.quantization
        )

    def untrained_model(self) -> PreTrainedModel | PeftModel:
        """Load the start model, with adapters if configured."""
        return apply_lora(self._start_model(), self.config.lora, task_type="CAUSAL_LM")

    def build_trainer(self, checkpoint: Path | None) -> PolicyTrainer:
        """Build the trainer, with packs if the model supports them."""
        context, config, batch = self.context, self.config, self.context.spec.batch
        if is_first_rank():
            for one in self.rewards:
                one.reward.record(context)
            path, terms = context.checkpoints / COMPLETION_LOG_FILE, [term.name for term in config.rewards]
            self.log = CompletionLog(
                path,
                terms=terms,
                has_critic=config.has_critic,
                resumed_from_step=checkpoint_step(checkpoint) or 0,
            )
        # Adapters begin with random weights, the same ones on each rank; completions differ from rank to rank.
        set_seed(context.spec.seed)
        if config.has_critic:
            with torch.random.fork_rng():  # a policy beside a critic begins as one without
                self.critic = start_critic(context, config, self.model, self.tokenizer)
        policy = apply_lora(self.model, config.lora, task_type="CAUSAL_LM")
        for model in (policy, self.reference):
            if model is not None:
                disable_dropout_in_model(model)
                learns = config.method.entropy_weight > 0 and model is policy
                add_logps(causal_of(model), temperature=config.temperature, entropy_learns=learns)
        state = PolicyStateCallback()
        self.evidence = self._evidence()
        looks = () if self.evidence is None else (self.evidence,)
        waits = () if self.evidence is None else (AwaitsJudge(self.evidence),)
        trainer = PolicyTrainer(
            rollouts=self._rollouts(),
            make_step=self._step,
            completion_log=self.log,
            sampling_check=start_check(context, config, self.rollouts, policy),
            num_logged_completions=config.num_logged_completions,
            model=policy,
            args=completion_arguments(
                context,
                config,
                schedule=self.schedule,
                batch=batch.model_copy(update={"per_device_batch_size": 1, "gradient_accumulation_steps": 1}),
                evaluates=False,
            ),
            train_dataset=StepNumbers(self.schedule.num_steps, num_ranks=batch.num_processes),
            processing_class=self.tokenizer,
            callbacks=[
                *looks,
                *self.callbacks(checkpoint, with_state=[state]),
                *waits,
            ],
        )
        state.trainer = trainer
        restore_policy_state(trainer, checkpoint)
        if self.evidence is not None:
            self.evidence.trainer = trainer
            self.evidence.restore(checkpoint)
        set_seed(context.spec.seed, device_specific=True)
        return trainer

    def _reference(self) -> PreTrainedModel | None:
        """Load the start model once more, if every weight is trained and the KL is wanted.

        In the precision of the forwards of a policy that is divided; of another one, in that of its weights.
        """
        if self.config.lora is not None or not self.config.method.beta:
            return None
        whole = not self.config.keeps_start_model
        return load_start_model(self.context, self.tokenizer, whole=whole).requires_grad_(False).eval()

    def _rollouts(self) -> PolicyRollouts:
        config, batch = self.config, self.context.spec.batch
        return PolicyRollouts(
            config=config,
            prompts=self.prompts.prompts,
            tokenizer=self.tokenizer,
            reward=PolicyReward(self.rewards, config),
            writing=self.writing,
            order=PromptOrder(len(self.prompts.prompts), seed=self.context.spec.seed),
            rows_per_rank=self.minibatches.per_epoch * batch.global_batch_size // batch.num_processes,
            rank=own_rank(),
            num_ranks=batch.num_processes,
            order_seed=self.context.spec.seed,
            minibatches=self.minibatches,
            sampling=None if self.rollouts is None else self.rollouts.sampling,
            opening=self.opening,
        )

    def _evidence(self) -> EvidenceCallback | None:
        batch, config = self.context.spec.batch, self.config
        rows = batch.per_device_batch_size
        return evidence_callback(
            self.context,
            config,
            self.judges,
            self.held_out,
            rewards=self.rewards,
            write=writer(self.tokenizer, config, self.writing, rows_at_a_time=rows * batch.gradient_accumulation_steps),
            log_ratios=log_ratios_to(self.reference, config, pad_id=int(self.tokenizer.pad_token_id), batch_size=rows),
            opening=self.opening,
            schedule=self.schedule,
            untrained=self._start_model,
        )

    @property
    def last_step(self) -> int:
        """The planned last step, or the one at which the evidence ended training."""
        ended_at = None if self.evidence is None else self.evidence.progress.ended_at
        return self.schedule.num_steps if ended_at is None else ended_at

    def publish(self, trainer: PolicyTrainer) -> None:
        """Load the trusted step, if another one than the last is trusted."""
        if self.evidence is not None:
            self.published_step = self.evidence.publish()
            self.ended_because = self.evidence.progress.ended_because

    def _step(self, accelerator: Any) -> PolicyStep:
        text_config = self.model.config.get_text_config()
        return PolicyStep(
            accelerator=accelerator,
            method=self.config.method,
            num_generations=self.config.num_generations,
            longest=self.config.max_completion_length,
            updates_per_rollout=self.minibatches.updates,
            cut=self.cut,
            reference=self.reference,
            aux_weight=getattr(text_config, "router_aux_loss_coef", None) or 0.0,
            critic=self.critic,
            correction=self.config.sampling_correction,
            divides=divides_model(self.context.spec.profile),
        )

    def save(self, trainer: PolicyTrainer) -> None:
        """Save `model/`, with adapters `adapter/`, and the kept completions; note which had no value."""
        if text := trainer.rollouts.reward.unscorable_text():
            self.context.recorder.note(text)
        if self.log is not None:
            self.log.write_parquet(self.context.output / COMPLETIONS_FILE)
            if self.log.num_unreadable:
                self.context.recorder.note(
                    f"{self.log.num_unreadable} unreadable lines were left out of {COMPLETIONS_FILE}."
                )
        if self.evidence is not None:
            text = self.evidence.record().model_dump_json(indent=2)
            (self.context.output / EVIDENCE_FILE).write_text(text, encoding="utf-8")
        save_causal_model(self.context, trainer.accelerator.unwrap_model(trainer.model), self.tokenizer)

    def tried_copies(self, context: StageContext) -> TriedCopies:
        """Try the copies on prompts."""
        sequences = [prompt.token_ids for prompt in self.prompts.prompts]
        return tried_causal_copies(context, self.config, self.untrained_model(), self.tokenizer, sequences)

    def metrics(self, trainer: PolicyTrainer, parameters: tuple[int, int]) -> tuple[Metric, ...]:
        """Return reward at start and end, KL and lengths at the end, and which step is published."""
        figures = curve_metrics(trainer.state.log_history, num_steps=self.last_step)
        return figures if self.evidence is None else (*figures, *self.evidence.metrics())

    def close(self) -> None:
        """Close the rollout engine, the judges and the rewards."""
        close_judges(self.judges)
        if self.rollouts is not None:
            self.rollouts.close()
        close_rewards(self.rewards)
