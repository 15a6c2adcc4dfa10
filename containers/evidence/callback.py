"""The Trainer callback that looks at a policy while it trains, and the weights that are published in the end."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from containers.contracts.digests import write_atomically
from containers.contracts.evidence import Evidence, EvidenceLook, MeterLimit
from containers.contracts.names import EVIDENCE_FILE
from containers.contracts.outcome import Metric
from containers.distributed.ranks import is_first_rank, of_all_ranks
from containers.evidence.looks import HeldOut
from containers.evidence.meters import limits_of
from containers.evidence.progress import OpenLook, Progress, look_text, step_text
from containers.evidence.reward_model_meters import OUTLIERS, RewardModelMeters
from containers.harness.errors import JudgeAwaitedError, NoSignalError, StageError
from containers.harness.recorder import Recorder
from containers.rewards.base import Answered
from containers.training.checkpoints import CHECKPOINT_PREFIX, checkpoint_flaw
from containers.training.sharding import gathered, is_divided, load_divided_optimizer, load_whole_weights

_OPTIMIZER_FILE = "optimizer.pt"


@dataclass
class EvidenceCallback(TrainerCallback):  # type: ignore[misc]
    """Looks at the policy when it is due, or when a meter asks for it; ends training, or takes it back.

    Comes before SaveCallback and RecorderCallback: a trusted step is saved, and its curves are written before that.

    Attributes:
        held_out: None: there is no judge, and the meters alone can end the training.
        every: a look is due at multiples of this, and at the last step; without a judge, the steps that are saved.
        untrained: loads the start model; for trainings of every weight.
        trainer: its `rollouts` have the newest completions, `step_figures` the step's curves, `step` the algorithm.
        reward_model: measures what the reward model shows; None where none gives rewards.
        awaited: what the open look waits for.
        settled: a look at the step of the checkpoint, whose judge has judged since.
    """

    progress: Progress
    held_out: HeldOut | None
    recorder: Recorder
    every: int
    untrained: Callable[[], PreTrainedModel]
    trainer: Any = None
    reward_model: RewardModelMeters | None = None
    settled: EvidenceLook | None = None
    awaited: JudgeAwaitedError | None = None

    @property
    def _policy(self) -> Any:
        return self.trainer.accelerator.unwrap_model(self.trainer.model)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Let the start model write, and compare reward and judge on it, unless a checkpoint has that.

        Raises:
            NoSignalError: they agree less than the configuration demands.
        """
        progress = self.progress
        if self.settled is not None and self.settled.consequence == "rolls back":
            self._roll_back()
        if self.held_out is None or progress.start is not None:
            return
        began_s = time.monotonic()
        with gathered(self._policy):
            progress.start, progress.answers, progress.agreement = self.held_out.start(self._policy)
        progress.duration_s += time.monotonic() - began_s
        self.recorder.metrics(0, {"evidence_reward": progress.start.reward})
        self._demand_agreement()

    def _demand_agreement(self) -> None:
        progress, wanted = self.progress, self.progress.settings.minimum_rank_agreement
        found = progress.agreement
        if found is not None:
            self.recorder.note(
                f"On the start model's own answers to {found.count:,} held-out prompts, the rank correlation of reward "
                f"and judge {progress.judge} is {found.value:.2f} ({found.ci_low:.2f} to {found.ci_high:.2f})."
            )
        if wanted is not None and (found is None or found.value < wanted):
            shown = "cannot be measured" if found is None else f"is {found.value:.2f}"
            raise NoSignalError(
                f"The rank correlation of reward and judge {progress.judge} on the start model's own answers {shown}, "
                f"and train_policy.evidence.minimum_rank_agreement is {wanted:g}: what this reward teaches is not what "
                "the judge looks for. Nothing was trained. Use another reward model or other rewards, or lower the "
                "bound."
            )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Keep the checkpoint of a step that was trusted after it was saved."""
        if self.settled is not None and self.settled.consequence == "trusted":
            self._name_best(state, self.settled.step)
        self.settled = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Follow the meters; look, if it is time."""
        step, progress = state.global_step, self.progress
        if self.reward_model is not None and self.trainer.is_new_rollout:
            found = self.reward_model.figures(self._answered())
            self.trainer.note(found)
            self.trainer.rollouts.figures |= found
        if not progress.meters.limits or self._has_new_meter():
            progress.meters.limits = self._limits() | progress.meters.limits
        over = progress.meters.take(self.trainer.step_figures)
        if over and not progress.waiting:
            progress.waiting = over[0]
        is_due = step % self.every == 0 or step == state.max_steps
        if self.held_out is None:
            self._without_judge(state, control, is_due=is_due)
        elif is_due or progress.waiting:
            self._look(self.held_out, state, control, is_due=is_due)
        if is_due:
            progress.meters.muted.clear()

    def _without_judge(self, state: TrainerState, control: TrainerControl, *, is_due: bool) -> None:
        progress, step = self.progress, state.global_step
        if not progress.waiting:
            if is_due:
                progress.inside = step
                self._keep(state, control)
            return
        because, progress.waiting = progress.waiting, ""
        if progress.settings.on_limit_unjudged == "note":
            self.recorder.note(f"Warning: step {step:,}: {because}; no judge looks at the policy.")
            return
        progress.end(step, f"it is outside the reward model's evidence, and no judge has judged it: {because}")
        control.should_save = control.should_training_stop = True
        self.recorder.note(
            f"Step {step:,}: {because}. That is outside what the reward model learnt from, and no judge looks at the "
            f"policy. Training ends, and {step_text(progress.inside)} is published. Name a judge in "
            "evaluate_policy.judges, or set train_policy.evidence.on_limit_unjudged to note."
        )

    def _look(self, held_out: HeldOut, state: TrainerState, control: TrainerControl, *, is_due: bool) -> None:
        progress, step, is_last = self.progress, state.global_step, state.global_step == state.max_steps
        with gathered(self._policy):
            written = held_out.begin(self._policy, step=step)
        progress.open = OpenLook(step, is_due=is_due, is_last=is_last, written=written, limits=self._limits())
        look = self._settle(held_out)
        if look is None:
            control.should_save = True  # and then the stage ends: `AwaitsJudge`
        elif look.consequence == "trusted":
            self._keep(state, control)
        elif look.consequence == "ends":
            control.should_save = control.should_training_stop = True
        elif look.consequence == "rolls back":
            self._roll_back()

    def _settle(self, held_out: HeldOut) -> EvidenceLook | None:
        """Take in the open look; None if it waits for its judge.

        What follows for weights and checkpoints is left to the caller.
        """
        progress, opened = self.progress, self.progress.open
        if opened is None:
            return None
        try:
            with gathered(self._policy):
                compared = held_out.compare(self._policy, progress.answers, opened.written, step=opened.step)
        except JudgeAwaitedError as error:
            self.awaited = error
            return None
        progress.open = None
        look = progress.take(compared, step=opened.step, is_due=opened.is_due, is_last=opened.is_last)
        self.recorder.note(look_text(look, judge=progress.judge))
        self.recorder.metrics(look.step, _curves(look))
        if look.consequence == "trusted":
            began_s = time.monotonic()
            with gathered(self._policy):
                progress.answers = held_out.completed(self._policy, compared.answers, step=look.step)
            progress.duration_s += time.monotonic() - began_s
            progress.meters.reset(opened.limits)
        return look

    def _limits(self) -> dict[str, MeterLimit]:
        """Return the limits of the meters by the completions of this step."""
        rollouts = self.trainer.rollouts
        answers = [row.completion for row in rollouts.newest.rows]
        figures = rollouts.figures | self.trainer.step_figures
        if self.reward_model is not None:
            figures = figures | self.reward_model.padding(self._answered())
        return limits_of(answers, figures, maximum_kl=self.progress.settings.maximum_kl)

    def _answered(self) -> list[Answered]:
        rollouts = self.trainer.rollouts
        return [rollouts.answered(row.prompt, row.completion) for row in rollouts.newest.rows]

    def _has_new_meter(self) -> bool:
        """Whether outliers are measured for the first time: that takes the answers of some steps."""
        return OUTLIERS in self.trainer.step_figures and OUTLIERS not in self.progress.meters.limits

    def _roll_back(self) -> None:
        """Go back to the weights and optimizers of the trusted step, with twice the beta."""
        step, trainer = self.progress.trust.step, self.trainer
        self._load(step)
        self._load_optimizer(step)
        if trainer.rollouts.current is not None:
            trainer.rollouts.current.give_up()
        if trainer.step.critic is not None and step:
            trainer.step.critic.load(self._checkpoint(step))
        method = trainer.step.method
        trainer.step = replace(trainer.step, method=method.model_copy(update={"beta": 2 * method.beta}))

    def _keep(self, state: TrainerState, control: TrainerControl) -> None:
        """Save this step, and keep its checkpoint until another one is trusted."""
        control.should_save = True
        self._name_best(state, state.global_step)

    def _name_best(self, state: TrainerState, step: int) -> None:
        state.best_global_step = step
        state.best_model_checkpoint = str(self._checkpoint(step))

    def _checkpoint(self, step: int) -> Path:
        return Path(self.trainer.args.output_dir) / f"{CHECKPOINT_PREFIX}{step}"

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the state into the checkpoint, on the first rank."""
        if is_first_rank():
            found = self.progress.state() | {"reference": self.reward_model and self.reward_model.reference}
            write_atomically(self._checkpoint(state.global_step) / EVIDENCE_FILE, json.dumps(found))

    def restore(self, checkpoint: Path | None) -> None:
        """Go on where the evidence was when that checkpoint was written.

        Raises:
            JudgeAwaitedError: a look of that step still waits for its judge.
        """
        if checkpoint is None:
            return
        state = json.loads((checkpoint / EVIDENCE_FILE).read_text(encoding="utf-8"))
        self.progress.restore(state)
        if self.reward_model is not None:
            self.reward_model.reference = state["reference"]
        if self.held_out is None or self.progress.open is None:
            return
        self.settled = self._settle(self.held_out)
        self.after_save()

    def after_save(self) -> None:
        """End the stage if a look waits for its judge; the checkpoint of its step is whole.

        Raises:
            JudgeAwaitedError: it does.
        """
        if self.progress.open is None:
            return
        step = self.progress.open.step
        raise JudgeAwaitedError(
            f"{self.awaited} They compare step {step:,} with {step_text(self.progress.trust.step)}. "
            f"{CHECKPOINT_PREFIX}{step} holds the training, which goes on from there."
        )

    def publish(self) -> int:
        """Put the weights in place that the stage publishes; return their step.

        Raises:
            StageError: the checkpoint that has them was damaged since it was saved.
        """
        last_step = int(self.trainer.state.global_step)
        step = self.progress.published_step(last_step)
        if step != last_step:
            self._load(step)
        return step

    def record(self) -> Evidence:
        """Return what `evidence.json` says of the finished training."""
        decides = None if self.held_out is None else self.held_out.judges[0].started
        return self.progress.record(
            last_step=int(self.trainer.state.global_step),
            shown=decides.shown() if decides else "",
            part=decides.part_in_training() if decides else "",
            num_prompts=0 if self.held_out is None else len(self.held_out.prompts),
        )

    def metrics(self) -> tuple[Metric, ...]:
        """Return the figures for the manifest."""
        progress, last_step = self.progress, int(self.trainer.state.global_step)
        published = Metric(name="published_step", value=progress.published_step(last_step), unit="steps")
        if not progress.judge:
            return (published,)
        looks = Metric(name="num_looks", value=len(progress.looks), unit="looks")
        return (published, looks) if progress.agreement is None else (published, looks, progress.agreement)

    def _load(self, step: int) -> None:
        """Load the weights of that step into the policy; of step 0 those of the start model."""
        if not step:
            _make_untrained(self._policy, self.untrained)
            return
        checkpoint = self._checkpoint(step)
        flaw = checkpoint_flaw(checkpoint) if is_first_rank() else ""
        if flaw := of_all_ranks(flaw)[0]:
            raise StageError(
                f"{checkpoint.name}, the trusted checkpoint, was damaged since it was saved: {flaw}. Start the stage "
                "again and it resumes from one that is whole."
            )
        self.trainer.state.best_model_checkpoint = str(checkpoint)
        self.trainer._load_best_model()

    def _load_optimizer(self, step: int) -> None:
        optimizer, checkpoint = self.trainer.optimizer, self._checkpoint(step)
        if not step:
            optimizer.state.clear()
        elif is_divided(self._policy):
            load_divided_optimizer(self.trainer, checkpoint)
        else:
            file = checkpoint / _OPTIMIZER_FILE
            optimizer.load_state_dict(torch.load(file, map_location=self.trainer.args.device, weights_only=True))


def _curves(look: EvidenceLook) -> dict[str, float]:
    found = {"evidence_reward": look.reward, "evidence_win_rate": look.win_rate, "evidence_kl": look.kl}
    return {name: value for name, value in found.items() if value is not None}


@torch.no_grad()
def _make_untrained(policy: Any, untrained: Callable[[], PreTrainedModel]) -> None:
    """Give the policy the start model's weights: without effect of its adapters, or all of them."""
    if hasattr(policy, "disable_adapter"):
        for name, weights in policy.named_parameters():
            if "lora_B" in name:
                weights.zero_()
        return
    load_whole_weights(policy, untrained().state_dict())
