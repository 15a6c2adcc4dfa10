"""Probe `reward_step`: steps of the run's own reward model training, in its shape with random weights, on full packs.

Everything but weights and pairs is the stage's: its trainer, packs, precision, adapters and optimizer.
"""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from containers.algorithms.reward_model import PackedPairTrainer, make_packs
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.schedule import ResolvedSchedule
from containers.data.pairs import Row
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import join_ranks
from containers.models.adapters import apply_lora, freeze_all_but_head
from containers.selftest.cards import settle
from containers.selftest.probe import Bench, Findings, NotHereError
from containers.selftest.shape import any_tokenizer, drawn, model_config, reward_model, with_made_files
from containers.stages.train_reward_model import RewardModelTraining
from containers.token_budgets import pair_pack_tokens
from containers.training.examples import TrainingExamples
from containers.training.records import Prepared, peak_memory_bytes
from containers.training.token_cache import SplitExamples

# The first step compiles, tunes and allocates.
NUM_STEPS = 3
# A pair's answers share half of what each of them is long.
_SHARED = 2


class Steps(TrainerCallback):  # type: ignore[misc]
    """Takes the time of each step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = 0.0
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        settle(self._device)
        self._started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop it."""
        settle(self._device)
        self.seconds.append(time.monotonic() - self._started)


def train_without_files(trainer: Any, steps: Steps) -> None:
    """Train to the last step; nothing is evaluated or saved."""
    trainer.args.save_strategy, trainer.args.eval_strategy = SaveStrategy.NO, IntervalStrategy.NO
    trainer.args.load_best_model_at_end = False
    trainer.add_callback(steps)
    trainer.train()


class ShapeTraining(RewardModelTraining):
    """The stage's training, on a model of the shape in the request and on pairs that fill its packs."""

    bench: Bench

    def prepare(self) -> Prepared:
        """Make tokens of pairs, as long as fills a pack."""
        config, batch = self.config, self.context.spec.batch
        self.tokenizer = any_tokenizer(max_length=config.max_length)
        budget = config.pack_tokens or pair_pack_tokens(
            config.max_length,
            per_device_batch_size=batch.per_device_batch_size,
            on_gpu=self.context.spec.profile.num_gpus > 0,
        )
        words = model_config(self.bench.request).get_text_config().vocab_size
        rows = pairs_that_fill(budget, max_length=config.max_length, words=words, count=batch.global_batch_size)
        self.budget, split = budget, SplitExamples([*range(len(rows))], rows, 0, 0, "")
        self.examples = TrainingExamples(split, split)
        self.evaluated = split.kept
        self.schedule = ResolvedSchedule(
            num_steps=NUM_STEPS, steps_per_epoch=1, eval_steps=NUM_STEPS, save_steps=NUM_STEPS, logging_steps=1
        )
        return Prepared(self.schedule, len(rows), 0, 0)

    def untrained_model(self) -> Any:
        """Make the model with its score head, and with adapters if configured."""
        config, profile = self.config, self.context.spec.profile
        if config.quantization is not None:  # only weights from files are quantized
            self.context, self.score_token_id = with_made_files(self.context, self.bench.request), None
            return super().untrained_model()
        dtype = torch.float32 if config.trainable == "full" else compute_dtype(profile)
        model = reward_model(model_config(self.bench.request), dtype=dtype, device=compute_device(profile))
        if config.trainable == "head":
            return freeze_all_but_head(model)
        return apply_lora(model, config.lora, task_type="SEQ_CLS")

    def callbacks(self, checkpoint: Path | None, **_: Any) -> list[TrainerCallback]:
        """Return none: nothing is recorded or saved."""
        return []


def pairs_that_fill(budget: int, *, max_length: int, words: int, count: int) -> list[Row]:
    """Return pairs of equal length of which a whole number fills a pack of `budget` tokens, or nearly.

    Example: 16,384 tokens and a max_length of 2,048 give pairs of 2 × 1,820, of which a pack holds six.
    """
    longest = max_length + max_length // _SHARED
    in_a_pack = max(1, -(-budget // longest))
    side = max(_SHARED, min(max_length, int(budget / in_a_pack / (1 + 1 / _SHARED))))
    shared = side // _SHARED
    rows: list[Row] = []
    for place in range(count):
        prompt = drawn(shared, seed=3 * place, words=words)
        answers = [drawn(side - shared, seed=3 * place + more, words=words) for more in (1, 2)]
        rows.append({"chosen_ids": [*prompt, *answers[0]], "rejected_ids": [*prompt, *answers[1]], "margin": 0.0})
    return rows


def probe(bench: Bench, found: Findings) -> None:
    """Take three steps with all ranks; keep the time of the last ones, and the peak of memory."""
    config = bench.context.spec.config
    assert isinstance(config, TrainRewardModelConfig)  # noqa: S101 - the orchestrator gives this stage's
    model_config(bench.request)  # raises where the shape is not known
    join_ranks(bench.context)
    training = ShapeTraining(bench.context)
    training.bench = bench
    training.prepare()
    reset_peak(bench.device)
    trainer, steps = training.build_trainer(None), Steps(bench.device)
    with training.while_training(trainer):
        train_without_files(trainer, steps)
    add_steps(found, steps, bench.device)
    pairs = [(row["chosen_ids"], row["rejected_ids"]) for row in training.examples.train.kept]
    of_a_rank = pairs[: max(1, len(pairs) // bench.context.spec.batch.num_processes)]
    packs = make_packs(of_a_rank, max_tokens=training.budget)
    found.add("largest_pack", max(pack.input_ids.numel() for pack in packs), "tokens")
    found.add("step_of_a_rank", sum(pack.input_ids.numel() for pack in packs), "tokens")
    found.notes += [bench.request.model_note] if bench.request.model_note else []
    if not isinstance(trainer, PackedPairTrainer):
        raise NotHereError("pairs of this model are not packed, so the plan's figures are of other rows")


def add_steps(found: Findings, steps: Steps, device: torch.device) -> None:
    """Add the time of the fastest step but the first, and the memory."""
    found.add("step", min(steps.seconds[1:]), "s")
    found.add("peak", peak_memory_bytes(), "bytes")
    found.add("in_use", in_use_bytes(device), "bytes")


def reset_peak(device: torch.device) -> None:
    """Forget what memory was used before."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def in_use_bytes(device: torch.device) -> int:
    """Return what the driver counts as used on the card, CUDA itself included; 0 on a processor."""
    if device.type == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
