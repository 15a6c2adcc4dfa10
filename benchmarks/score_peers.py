"""The peers that score_speed compares with, in each of their settings: rewardbench's steps and TRL's evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl import RewardConfig, RewardTrainer

from benchmarks.speed_inputs import MAX_LENGTH, Conversation, ConversationPair
from containers.scoring.scorer import RewardScorer

# In the order chosen, rejected for each pair.
Scores = list[float]
TokenPairs = list[list[list[int]]]
REWARDBENCH, TRL = "rewardbench's way", "TRL's evaluation"
_UNITS = {REWARDBENCH: "row", TRL: "pair"}


@dataclass(frozen=True)
class Setting:
    """A peer with one of its settings.

    Attributes:
        size: rows (rewardbench) or pairs (TRL) a batch.
        by_length: the pairs are sorted beforehand.
    """

    peer: str
    size: int
    by_length: bool = False

    def __str__(self) -> str:
        unit = _UNITS[self.peer] + ("" if self.size == 1 else "s")
        return f"{self.peer}, {self.size} {unit} a batch{', sorted by length' if self.by_length else ''}"


_DEFAULT_SIZE = 8
# With one row a batch there is nothing to sort for rewardbench; TRL pads both sides of a pair alike.
SETTINGS = {
    str(setting): setting
    for peer in (REWARDBENCH, TRL)
    for size in (1, 2, 4, _DEFAULT_SIZE)
    for by_length in (False, True)
    if (setting := Setting(peer, size, by_length)) and (size > 1 or not by_length)
}
DEFAULTS = {peer: str(Setting(peer, _DEFAULT_SIZE)) for peer in (REWARDBENCH, TRL)}


def peers_way(
    setting: Setting, scorer: RewardScorer, pairs: Sequence[ConversationPair], folder: Path
) -> Callable[[], Scores]:
    """Return a function that scores the pairs as the peer does; what comes before scoring is already done.

    Args:
        folder: for what TRL writes.
    """
    if setting.peer == REWARDBENCH:
        scored = partial(_as_rewardbench, scorer, batch_size=setting.size)
    else:
        scored = partial(_as_trl, _trainer(scorer, folder, pairs[:1], batch_size=setting.size))
    return partial(by_length, pairs, scored) if setting.by_length else partial(scored, pairs)


def by_length(pairs: Sequence[ConversationPair], scored: Callable[[Sequence[ConversationPair]], Scores]) -> Scores:
    """Return scores in the order of the pairs, which are scored from the shortest to the longest."""
    order = sorted(range(len(pairs)), key=lambda place: max(_letters(side) for side in pairs[place]))
    found = scored([pairs[place] for place in order])
    scores = [0.0] * len(found)
    for number, place in enumerate(order):
        scores[2 * place : 2 * place + 2] = found[2 * number : 2 * number + 2]
    return scores


def _letters(side: Conversation) -> int:
    return sum(len(turn["content"]) for turn in side)


def _as_rewardbench(scorer: RewardScorer, pairs: Sequence[ConversationPair], *, batch_size: int) -> Scores:
    tokenizer: PreTrainedTokenizerBase = scorer.tokenizer
    tokenizer.padding_side = "left"
    scores = [0.0] * (2 * len(pairs))
    for start in range(0, len(pairs), batch_size):
        batch = pairs[start : start + batch_size]
        for side in (0, 1):
            texts = [tokenizer.apply_chat_template(pair[side], tokenize=False) for pair in batch]
            inputs = tokenizer(texts, truncation=False, padding=True, return_tensors="pt", add_special_tokens=False)
            with torch.no_grad():
                logits = scorer.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            for number, score in enumerate(logits.float().squeeze(-1).tolist()):
                scores[2 * (start + number) + side] = score
    return scores


class _KeepsScores(RewardTrainer):  # type: ignore[misc]
    """TRL's trainer, extended to keep the scores of an evaluation."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.scores: Scores = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        """Compute TRL's loss, and keep the scores."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        sides: list[Tensor] = list(outputs.logits.squeeze(-1).float().chunk(2))
        self.scores += torch.stack(sides, dim=1).flatten().tolist()
        return (loss, outputs) if return_outputs else loss


def _trainer(scorer: RewardScorer, folder: Path, few: Sequence[ConversationPair], *, batch_size: int) -> _KeepsScores:
    """Return TRL's trainer; it requires training rows, so it gets a few that it does not train on."""
    arguments = RewardConfig(
        output_dir=str(folder / "out"),
        per_device_eval_batch_size=batch_size,
        max_length=MAX_LENGTH,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    train = _as_rows(few)
    return _KeepsScores(model=scorer.model, args=arguments, train_dataset=train, processing_class=scorer.tokenizer)


def _as_rows(pairs: Sequence[ConversationPair]) -> Dataset:
    return Dataset.from_list([{"chosen": chosen, "rejected": rejected} for chosen, rejected in pairs])


def _as_trl(trainer: _KeepsScores, pairs: Sequence[ConversationPair]) -> Scores:
    trainer.evaluate(_as_rows(pairs))
    return trainer.scores


def _padded(lengths: Sequence[int], batch_size: int) -> int:
    """Return the number of tokens of padded batches, in this order."""
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    return sum(len(batch) * max(batch) for batch in batches)


def padded_tokens(tokens: TokenPairs, setting: Setting) -> int:
    """Return the number of tokens that a peer computes, padding included."""
    order = sorted(tokens, key=lambda pair: max(map(len, pair))) if setting.by_length else tokens
    if setting.peer == TRL:
        return 2 * _padded([max(map(len, pair)) for pair in order], setting.size)
    return sum(_padded([len(pair[side]) for pair in order], setting.size) for side in (0, 1))
