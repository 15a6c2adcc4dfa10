"""Save the copies of a trained reward model, load them from disk, and compare their scores with its own."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.names import ADAPTER_FOLDER, MERGED_FOLDER
from containers.data.pairs import Row, both_sides
from containers.distributed.devices import compute_device, compute_dtype
from containers.evals.sample_predictions import (
    NUM_RELOAD_PAIRS,
    sample_predictions,
    write_reloaded_scores,
    write_sample_predictions,
)
from containers.evals.score_statistics import write_score_statistics
from containers.harness.context import StageContext
from containers.harness.errors import StageError
from containers.models.loading import load_new_reward_model, save_adapter, save_merged
from containers.models.score_token import SCORE_TOKEN
from containers.scoring.copies import SavedCopy, TriedCopies, largest_gap, move_trained_weights
from containers.scoring.margin_gap import MarginGap
from containers.scoring.rounding import allowed_by_trial, allowed_difference, num_layers_of, turn_last_bits
from containers.scoring.scorer import Conversation, RewardScorer

# How much farther than rounding moves scores the trial of the copies moves them; and, where layers of int8 round their
# inputs, which the exported model does not, how far it may be away, as a share of that move. Both chosen, not measured.
_TIMES_ROUNDING, _SHARE_OF_INT8 = 4.0, 0.5


def save_and_reload(
    context: StageContext,
    config: TrainRewardModelConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    *,
    rows: Sequence[Row],
    scores: Sequence[tuple[float, float]],
    statistics: ScoreStatistics,
) -> float:
    """Write `adapter/` and `merged/`, load both from disk, and return the largest difference to the trained scores.

    Args:
        model: with adapters, both copies are saved, otherwise only `merged/`; do not use it afterwards.
        rows: validation pairs, with the trained model's two `scores` of each.
        statistics: statistics of all scores; saved with each copy.

    Raises:
        StageError: a saved copy's scores differ from the trained model's by more than rounding explains. How far
            rewards and orders depend on the copy, the certificate says (`containers.certificate.parity`).
    """
    conversations = [side for row in rows[:NUM_RELOAD_PAIRS] for side in both_sides(row)]
    wanted = [score for pair in scores[:NUM_RELOAD_PAIRS] for score in pair]
    reloaded: dict[str, list[float]] = {}
    differences = []
    copies = _saved_copies(context, config, model, tokenizer, conversations=conversations, wanted=wanted)
    for copy in copies:
        write_score_statistics(context.output / copy.name, statistics)
        reloaded[copy.name] = copy.values
        differences.append(copy.difference)
        if _rounds_inputs(config, copy):
            _demand_like_margins(wanted, copy.values)
        elif copy.difference > copy.allowed:
            raise StageError(
                f"{copy.name}/, loaded from disk, gives scores up to {copy.difference:.3g} away from the trained "
                f"model's; at most {copy.allowed:.3g} is allowed. The saved model is not the trained one."
            )
    if config.quantization == "int8":
        del reloaded[ADAPTER_FOLDER]  # on layers that round their inputs, it is no copy of the exported model
    write_reloaded_scores(context.output, reloaded)
    if config.quantization is not None:
        # The certificate is of the exported model, so that is what its scores are compared with.
        exported = reloaded[MERGED_FOLDER]
        pairs = list(zip(exported[::2], exported[1::2], strict=True))
        write_sample_predictions(context.output, sample_predictions(rows, pairs, limit=len(pairs)))
    return max(differences)


def tried_copies(
    context: StageContext,
    config: TrainRewardModelConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
) -> TriedCopies:
    """Move the trained weights of a new model, save its copies, load them and compare their scores.

    Args:
        context: its output gets the copies.
        model: do not use it afterwards.
        rows: some pairs.
    """
    conversations = [side for row in rows for side in both_sides(row)]
    scorer = RewardScorer(model, tokenizer, max_length=config.max_length, batch_size=scoring_batch_size(context))
    by_rounding = partial(
        allowed_difference,
        compute_dtype(context.spec.profile),
        num_layers=num_layers_of(model),
        is_rounded=True,
    )
    wanted, moved = move_trained_weights(
        model,
        partial(scorer.score, conversations),
        gap=largest_gap,
        least=lambda scores: _TIMES_ROUNDING * by_rounding(scores),
    )
    copies = _saved_copies(context, config, model, tokenizer, conversations=conversations, wanted=wanted)
    return TriedCopies(
        moved,
        "score",
        tuple(
            replace(copy, allowed=_SHARE_OF_INT8 * moved) if _rounds_inputs(config, copy) else copy for copy in copies
        ),
    )


def _saved_copies(
    context: StageContext,
    config: TrainRewardModelConfig,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    *,
    conversations: Sequence[Conversation],
    wanted: list[float],
) -> Iterator[SavedCopy]:
    """Write `adapter/` and `merged/`, then yield each as loaded from disk.

    Args:
        wanted: the model's scores of the conversations.
    """
    dtype, num_layers = compute_dtype(context.spec.profile), num_layers_of(model)
    merged, adapter = context.output / MERGED_FOLDER, context.output / ADAPTER_FOLDER
    if isinstance(model, PeftModel):
        save_adapter(model, tokenizer, adapter, base_model=context.input("start_model").origin)
    else:
        model.to(dtype)
    # Move it off the GPU, to free memory for the copies.
    save_merged(model, tokenizer, merged).cpu()
    for folder in (merged, adapter) if isinstance(model, PeftModel) else (merged,):
        scorer = _reloaded(context, config, folder, tokenizer)
        found = scorer.score(conversations)
        difference = largest_gap(wanted, found)
        bound = allowed_difference(dtype, wanted, num_layers=num_layers, is_rounded=folder == merged)
        if difference > bound and folder == merged and dtype != torch.float32:
            turn = partial(scorer.everywhere, turn_last_bits)
            bound = max(bound, allowed_by_trial(turn, partial(scorer.score, conversations)))
        del scorer  # a small card has no memory for two copies
        yield SavedCopy(folder.name, found, difference, bound)


def _rounds_inputs(config: TrainRewardModelConfig, copy: SavedCopy) -> bool:
    """Whether the model was trained on layers that round their inputs, and this copy has plain ones."""
    return config.quantization == "int8" and copy.name == MERGED_FOLDER


def _demand_like_margins(wanted: Sequence[float], found: Sequence[float]) -> None:
    """Compare a plain copy with a model of int8 layers, which round their inputs too: more than rounding of a type."""
    gap = MarginGap.of(wanted, found)
    if not gap.is_allowed:
        raise StageError(
            f"The exported model is not what int8 layers trained: {gap}. Train longer, so that scores spread, or use "
            "train_reward_model.quantization: nf4."
        )


def _reloaded(
    context: StageContext, config: TrainRewardModelConfig, folder: Path, tokenizer: PreTrainedTokenizerBase
) -> RewardScorer:
    """Load the scorer of a saved copy: plain for `merged/`, through PEFT for `adapter/`."""
    device, dtype = compute_device(context.spec.profile), compute_dtype(context.spec.profile)
    batch_size = scoring_batch_size(context)
    if folder.name == MERGED_FOLDER:
        # Trained on quantized weights, it may be larger than its GPU.
        return RewardScorer.load(
            folder, device=device, dtype=dtype, max_length=config.max_length, batch_size=batch_size, spills=True
        )
    # Another seed, so that a score head missing from the adapter gives other scores.
    base = load_new_reward_model(
        context.input_path("start_model"),
        pad_token_id=tokenizer.pad_token_id,
        score_token_id=score_token_id(config, tokenizer),
        seed=context.spec.seed + 1,
        dtype=dtype,
        device=device,
        quantization=config.quantization,
    )
    adapted = PeftModel.from_pretrained(base, folder)
    return RewardScorer(adapted, tokenizer, max_length=config.max_length, batch_size=batch_size)


def score_token_id(config: TrainRewardModelConfig, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token at whose position the score is read; None without `use_cls`."""
    return int(tokenizer.convert_tokens_to_ids(SCORE_TOKEN)) if config.use_cls else None


def scoring_batch_size(context: StageContext) -> int:
    """Number of conversations per forward: two per pair of the training batch."""
    return 2 * context.spec.profile.max_per_device_batch_size
