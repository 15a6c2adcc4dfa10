"""Probe `policy_step`: generated tokens and updates of the run's own policy training, in its shape with random weights.

Everything but weights, prompts, completions and rewards is the stage's. Completions are as long as they can be; a few
tokens are generated where keys and values have their full length.
"""

import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel, TrainerCallback

from containers.algorithms.policy_packing import plan_policy_packing
from containers.algorithms.policy_rollouts import PolicyRollouts
from containers.algorithms.policy_training import PolicyTraining
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.schedule import ResolvedSchedule
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import join_ranks
from containers.models.offloading import offload
from containers.packing.kernel import try_kernels
from containers.packing.logps import causal_of
from containers.rewards.base import start_rewards
from containers.rollouts.engines import Rollouts, start_rollouts
from containers.rollouts.generate import Completion, sampled_completions
from containers.rollouts.prompts import PolicyPrompt, PolicyPrompts
from containers.selftest.cards import settle
from containers.selftest.probe import Bench, Findings, NotHereError
from containers.selftest.reward_step import (
    NUM_STEPS,
    Steps,
    add_steps,
    reset_peak,
    train_without_files,
)
from containers.selftest.shape import any_tokenizer, causal_model, drawn, model_config, with_made_files
from containers.training.records import Prepared, peak_memory_bytes

_GENERATED, _AT_FIRST = 32, 8
_NUM_PROMPTS = 16


class MadeRollouts(PolicyRollouts):
    """Rollouts of completions that are made up: as long as they can be, or one token shorter."""

    words: int
    has_generated: bool = False

    def written(self, policy: Any, places: Any) -> list[Completion]:
        """Return one completion for each of these prompts; at first, generate some tokens where the stage does it."""
        most = self.config.max_completion_length
        if not self.has_generated:
            self.has_generated = True
            with self.writing(policy):
                sampled_completions(
                    causal_of(policy),
                    self.tokenizer,
                    [self.prompts[place].token_ids for place in places],
                    max_new_tokens=min(_AT_FIRST, most),
                    temperature=self.config.temperature,
                )
        return [
            Completion(
                prompt_ids=self.prompts[place].token_ids,
                completion_ids=tuple(drawn(most - row % 2, seed=1000 + row, words=self.words)),
                text=str(row),
                ended=False,
            )
            for row, place in enumerate(places)
        ]


class ShapeTraining(PolicyTraining):
    """The stage's training, on a model of the shape in the request and on made-up prompts and completions."""

    bench: Bench

    @classmethod
    def of(cls, bench: Bench) -> Self:
        """Return the training of this bench, with all ranks joined.

        Raises:
            NotHereError: the run trains no policy that needs nothing but its start model, or the shape is not known.
        """
        config = bench.context.spec.config
        if not isinstance(config, TrainPolicyConfig):
            raise NotHereError("the run trains no policy on rewards")
        if config.has_critic:
            raise NotHereError("the critic starts from a reward model's files, which this probe does not have")
        model_config(bench.request)  # raises where the shape is not known
        join_ranks(bench.context)
        training = cls(bench.context)
        training.bench = bench
        return training

    @property
    def words(self) -> int:
        """Words of the model's vocabulary."""
        return int(model_config(self.bench.request).get_text_config().vocab_size)

    def prepare(self) -> Prepared:
        """Make prompts of full length, the model, and the rollout engine."""
        context, config = self.context, self.config
        try_kernels(compute_device(context.spec.profile))
        self.tokenizer = any_tokenizer(max_length=config.max_prompt_length + config.max_completion_length)
        tokens = [drawn(config.max_prompt_length, seed=place, words=self.words) for place in range(_NUM_PROMPTS)]
        self.prompts = PolicyPrompts(
            tuple(
                PolicyPrompt(str(place), "", ({"role": "user", "content": str(place)},), tuple(ids))
                for place, ids in enumerate(tokens)
            ),
            num_over_long=0,
            num_without_row=0,
            left_out_text="",
        )
        self.rewards, self.held_out, self.opening = start_rewards(context, config), (), ""
        self.model = self.untrained_model()
        self.reference = self.made_reference()
        self.cut = plan_policy_packing(context, config, self.model, tokens)
        self.rollouts = self.start_engine(tokens)
        self.writing = self.rollouts.writing
        self.schedule = ResolvedSchedule(
            num_steps=NUM_STEPS, steps_per_epoch=1, eval_steps=NUM_STEPS, save_steps=NUM_STEPS, logging_steps=1
        )
        return Prepared(self.schedule, len(tokens), 0, 0)

    def start_engine(self, prompts: Sequence[Sequence[int]]) -> Rollouts:
        """Start the engine of the configuration; see `start_rollouts`."""
        return start_rollouts(self.context, self.config, self.model, prompts)

    def untrained_model(self) -> PreTrainedModel:
        """Make the model in the types in which the stage loads it."""
        profile = self.context.spec.profile
        if self.config.quantization is not None:  # only weights from files are quantized
            self.context = with_made_files(self.context, self.bench.request)
            return self._start_model()
        dtype = torch.float32 if self.config.lora is None else compute_dtype(profile)
        return causal_model(model_config(self.bench.request), dtype=dtype, device=compute_device(profile))

    def made_reference(self) -> PreTrainedModel | None:
        """Make the reference in the type that the stage gives it, where it has one of its own."""
        config, profile = self.config, self.context.spec.profile
        if config.lora is not None or not config.method.beta:
            return None
        dtype = compute_dtype(profile) if config.keeps_start_model else torch.float32
        made = causal_model(model_config(self.bench.request), dtype=dtype, device=compute_device(profile))
        made.requires_grad_(False).eval()
        if config.offload_frozen:
            offload(made)
        return made

    def callbacks(self, checkpoint: Path | None, **_: Any) -> list[TrainerCallback]:
        """Return none: nothing is recorded or saved."""
        return []

    def _rollouts(self) -> PolicyRollouts:
        planned = super()._rollouts()
        made = MadeRollouts(**{field.name: getattr(planned, field.name) for field in fields(planned)})
        made.words = self.words
        return made


def probe(bench: Bench, found: Findings) -> None:
    """Generate, then take three updates with all ranks; keep times and the peak of memory."""
    training = ShapeTraining.of(bench)
    training.prepare()
    reset_peak(bench.device)
    trainer, steps = training.build_trainer(None), Steps(bench.device)
    rows = trainer.rollouts.rows_per_rank
    found.add("generated_token", _token_s(training, trainer, rows=rows), "s")
    found.add("rows", rows, "completions")
    found.add("peak_generating", peak_memory_bytes(), "bytes")
    with training.while_training(trainer):
        train_without_files(trainer, steps)
    add_steps(found, steps, bench.device)
    asked = [row.completion for row in trainer.rollouts.newest.rows[:rows]]
    packs = training.cut([list(one.prompt_ids) for one in asked], [list(one.completion_ids) for one in asked])
    found.add("largest_pack", max(pack.input_ids.numel() for pack in packs), "tokens")
    found.notes += [bench.request.model_note] if bench.request.model_note else []


def _token_s(training: ShapeTraining, trainer: Any, *, rows: int) -> float:
    """Return the seconds of one generated token of all rows, with keys and values of nearly full length."""
    config, device = training.config, compute_device(training.context.spec.profile)
    siblings = config.num_generations
    count = max(1, min(_GENERATED, config.max_completion_length - 1))
    before = config.max_prompt_length + config.max_completion_length - count
    prompts = [drawn(before, seed=row // siblings, words=training.words) for row in range(rows)]
    policy = trainer.accelerator.unwrap_model(trainer.model)
    took = []
    with training.writing(policy):
        for tokens in (1, 1 + count):
            settle(device)
            started = time.monotonic()
            sampled_completions(
                causal_of(policy),
                training.tokenizer,
                prompts,
                max_new_tokens=tokens,
                temperature=config.temperature,
            )
            settle(device)
            took.append(time.monotonic() - started)
    return max(took[1] - took[0], 1e-9) / count
