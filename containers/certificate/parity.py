"""Score parity: the same conversations must have equal scores on every code path, within what rewards and orders bear.

Three bounds: rounding explains the difference of every score, by the number of layers or by a trial; no margin of a
pair differs by more than 15 % of a typical margin (their root mean square); and no code path changes more than one
order in twenty. In bfloat16 the last two are narrower than what rounding is allowed, and no measured model came near
them (docs/suites.md).
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel
from trl.trainer.reward_trainer import DataCollatorForPreference

from containers.contracts.certificate import ParityPath, ScoreParity
from containers.contracts.names import ADAPTER_FOLDER, MERGED_FOLDER
from containers.contracts.records import SCORE_TOLERANCE, SamplePrediction
from containers.evals.sample_predictions import both_conversations, read_reloaded_scores, read_sample_predictions
from containers.harness.errors import BadConfigError, MissingPrerequisiteError, StageError
from containers.models.loading import load_tokenizer
from containers.rewards.reward_model import ModelReward, policy_scorer
from containers.scoring.rounding import (
    MARGIN_SHARE,
    allowed_by_trial,
    allowed_difference,
    allowed_orders,
    num_layers_of,
    turn_last_bits,
)
from containers.scoring.scorer import (
    Conversation,
    RewardScorer,
    conversation_tokens,
    saved_score_head,
)

LOGGED = "logged by training"
_COPIES = {MERGED_FOLDER: "merged model, reloaded by training", ADAPTER_FOLDER: "adapter, reloaded by training"}
_BATCH_SIZES = (1, 2, 8)
_MIXED_BATCH_SIZE = 8


def _evaluator(batch_size: int) -> str:
    return f"evaluator, batches of {batch_size}"


_ONE_BY_ONE = _evaluator(1)
# An adapter's head is kept in float32, the merged one may have been rounded to bfloat16.
_ROUNDED_HEAD = 2.0**-8


def measure_parity(artifact: Path, scorer: RewardScorer, *, trained_in: torch.dtype) -> ScoreParity:
    """Measure how far each code path differs from the scores that training logged.

    Args:
        artifact: of the reward model; `scorer` holds its merged model.
        trained_in: bfloat16 if training or this stage computed in it.

    Raises:
        StageError: a code path differs by more than a bound; the message names it.
        MissingPrerequisiteError: the adapter was saved without its score head, or with another one.
        BadConfigError: max_length is shorter than every logged conversation.
    """
    check_adapter_head(artifact)
    logged = _logged(artifact, scorer)
    wanted = [score for sample in logged.values() for score in (sample.score_chosen, sample.score_rejected)]
    bound = allowed_difference(trained_in, wanted, num_layers=num_layers_of(scorer.model), is_rounded=True)
    paths = {
        _COPIES[name]: [score for place in logged for score in scores[2 * place : 2 * place + 2]]
        for name, scores in read_reloaded_scores(artifact).items()
        if name in _COPIES
    }
    conversations = [conversation for sample in logged.values() for conversation in both_conversations(sample)]
    _check_adapter_tokens(artifact, scorer, conversations)
    paths |= _paths(scorer, conversations)
    if trained_in != torch.float32 and _largest_difference(wanted, paths) > bound:
        tokens = scorer.tokenize_all(conversations)
        turn = partial(scorer.everywhere, turn_last_bits)
        bound = max(bound, allowed_by_trial(turn, partial(scorer.score_tokens, tokens)))
    return _parity(wanted, paths, model=artifact, reference=LOGGED, bound=bound, precision=trained_in)


def measure_parity_of_stranger(
    model: Path, scorer: RewardScorer, conversations: Sequence[Conversation], *, precision: torch.dtype
) -> ScoreParity:
    """The same for a model that was trained elsewhere, without logged scores: the reference is batches of one.

    Args:
        model: its folder, for the message.
        conversations: an even number of them, each within the scorer's max_length.

    Raises:
        StageError: a code path differs by more than a bound.
        BadConfigError: there is no conversation.
    """
    if not conversations:
        raise BadConfigError(
            f"evaluate_reward_model.max_length {scorer.max_length} is shorter than every validation pair, so the "
            f"code paths to a score cannot be compared. Raise it."
        )
    paths = _paths(scorer, conversations)
    wanted = paths.pop(_ONE_BY_ONE)
    bound = allowed_difference(precision, wanted, num_layers=num_layers_of(scorer.model))
    return _parity(wanted, paths, model=model, reference=_ONE_BY_ONE, bound=bound, precision=precision)


def _parity(
    wanted: Sequence[float],
    paths: Mapping[str, Sequence[float]],
    *,
    model: Path,
    reference: str,
    bound: float,
    precision: torch.dtype,
) -> ScoreParity:
    """Return how far each code path differs from the wanted scores; two consecutive conversations are a pair.

    Raises:
        StageError: one differs by more than a bound; the message names it and the model.
    """
    margins = _margins(wanted)
    typical = math.sqrt(sum(margin**2 for margin in margins) / len(margins))
    parity = ScoreParity(
        num_conversations=len(wanted),
        reference=reference,
        bound=bound,
        num_pairs=len(margins),
        typical_margin=typical,
        margin_bound=max(2 * SCORE_TOLERANCE, MARGIN_SHARE * typical),
        orders_bound=allowed_orders(len(margins)),
        precision=str(precision).removeprefix("torch."),
        paths=tuple(_path(name, wanted, found) for name, found in paths.items()),
    )
    if not parity.holds:
        raise StageError(_refusal(parity, model))
    return parity


def _largest_difference(wanted: Sequence[float], paths: Mapping[str, Sequence[float]]) -> float:
    return max(abs(one - other) for found in paths.values() for one, other in zip(wanted, found, strict=True))


def _path(name: str, wanted: Sequence[float], found: Sequence[float]) -> ParityPath:
    margins = list(zip(_margins(wanted), _margins(found), strict=True))
    return ParityPath(
        name=name,
        max_difference=_largest_difference(wanted, {name: found}),
        max_margin_difference=max(abs(a - b) for a, b in margins),
        num_orders_changed=sum(a * b <= 0 and abs(a - b) > SCORE_TOLERANCE for a, b in margins),
    )


def _margins(scores: Sequence[float]) -> list[float]:
    return [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]


def check_adapter_head(artifact: Path) -> None:
    """Check that adapter and merged model hold the same score head; without an adapter, do nothing.

    Raises:
        MissingPrerequisiteError: the adapter holds another one, or none, so that it would score with a random one.
    """
    adapter = artifact / ADAPTER_FOLDER
    if not adapter.is_dir():
        return
    own, merged = saved_score_head(adapter).float(), saved_score_head(artifact / MERGED_FOLDER).float()
    if own.shape != merged.shape or not torch.allclose(own, merged, rtol=_ROUNDED_HEAD, atol=1e-6):
        raise MissingPrerequisiteError(
            f"The score heads of {adapter} and of the merged model beside it differ: one of the two is not what was "
            f"trained. Train the reward model again."
        )


def _check_adapter_tokens(artifact: Path, scorer: RewardScorer, conversations: Sequence[Conversation]) -> None:
    """Check that the tokenizers of adapter and merged model make the same tokens; without an adapter, do nothing.

    Raises:
        MissingPrerequisiteError: the tokens differ, so the adapter would score another text.
    """
    folder = artifact / ADAPTER_FOLDER
    if not folder.is_dir():
        return
    tokenizer = load_tokenizer(folder)
    both = [(conversation_tokens(tokenizer, each), scorer.tokenize(each)) for each in conversations]
    apart = [(own, wanted) for own, wanted in both if own != wanted]
    if apart:
        own, wanted = apart[0]
        raise MissingPrerequisiteError(
            f"The tokenizer in {folder} makes other tokens than that of the merged model beside it, for {len(apart)} "
            f"of {len(conversations)} conversations; the first one ends with {own[-3:]} instead of {wanted[-3:]}. Its "
            f"scores would differ. Train the reward model again."
        )


def _logged(artifact: Path, scorer: RewardScorer) -> dict[int, SamplePrediction]:
    """Return the logged samples of training that fit, by their places among all."""
    fitting = {
        place: sample
        for place, sample in enumerate(read_sample_predictions(artifact))
        if all(map(scorer.fits, both_conversations(sample)))
    }
    if not fitting:
        raise BadConfigError(
            f"evaluate_reward_model.max_length {scorer.max_length} is shorter than every conversation whose score "
            f"training logged. Use train_reward_model.max_length."
        )
    return fitting


def _paths(scorer: RewardScorer, conversations: Sequence[Conversation]) -> dict[str, list[float]]:
    """Score on each code path that begins at the merged model, in the order of the conversations."""
    tokens = scorer.tokenize_all(conversations)
    as_trained = [conversation_tokens(scorer.tokenizer, conversation) for conversation in conversations]
    paths = {"training collator": _by_training_collator(scorer, as_trained)}
    paths["evaluator, as configured"] = scorer.score_tokens(tokens)
    for size in _BATCH_SIZES:
        paths[_evaluator(size)] = _scorer(scorer, batch_size=size).score_tokens(tokens)
    paths["evaluator, mixed lengths"] = _mixed(_scorer(scorer, batch_size=_MIXED_BATCH_SIZE), tokens)
    reward = ModelReward(
        policy_scorer(
            scorer.model,
            scorer.tokenizer,
            batch_size=scorer.batch_size,
            batch_tokens=scorer.batch_tokens,
            spread=scorer.spread,
        )
    )
    paths["scorer of the policy stage"] = reward.scores(conversations)
    return paths


def _scorer(scorer: RewardScorer, *, batch_size: int) -> RewardScorer:
    """Return a scorer with batches of exactly that size, for any number of tokens."""
    return RewardScorer(
        scorer.model,
        scorer.tokenizer,
        max_length=scorer.max_length,
        batch_size=batch_size,
        batch_tokens=batch_size * scorer.max_length,
        spread=scorer.spread,
    )


def _by_training_collator(scorer: RewardScorer, tokens: Sequence[list[int]]) -> list[float]:
    """Score as TRL's RewardTrainer does: both sides of a few pairs in one batch, padded together with a mask, by the
    model's own forward and its own search for the last token."""
    batches = [list(tokens[start : start + _MIXED_BATCH_SIZE]) for start in range(0, len(tokens), _MIXED_BATCH_SIZE)]
    sizes = [len(batch) * max(map(len, batch)) for batch in batches]
    return [score for found in scorer.compute(_collated_scores, batches, sizes=sizes) for score in found]


@torch.no_grad()
def _collated_scores(model: PreTrainedModel, batches: list[list[list[int]]]) -> list[list[float]]:
    """Return for each batch of tokens, of which two neighbours are a pair, their scores."""
    collator, found = DataCollatorForPreference(pad_token_id=int(model.config.get_text_config().pad_token_id)), []
    for tokens in batches:
        pairs = [
            {"chosen_ids": chosen, "rejected_ids": rejected}
            for chosen, rejected in zip(tokens[::2], tokens[1::2], strict=True)
        ]
        batch = {name: tensor.to(model.device) for name, tensor in collator(pairs).items()}
        chosen, rejected = model(**batch, use_cache=False).logits.squeeze(-1).float().chunk(2)
        found.append([score for pair in zip(chosen.tolist(), rejected.tolist(), strict=True) for score in pair])
    return found


def _mixed(scorer: RewardScorer, tokens: Sequence[list[int]]) -> list[float]:
    """Score in batches that alternate between the shortest and the longest conversation left."""
    order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
    mixed = [place for pair in zip(order, reversed(order), strict=True) for place in pair][: len(order)]
    scores = [0.0] * len(tokens)
    for start in range(0, len(mixed), scorer.batch_size):
        places = mixed[start : start + scorer.batch_size]
        for place, score in zip(places, scorer.score_tokens([tokens[place] for place in places]), strict=True):
            scores[place] = score
    return scores


def _refusal(parity: ScoreParity, artifact: Path) -> str:
    apart = [path for path in parity.paths if not parity.allows(path)]
    named = "; ".join(_told(path, parity) for path in apart)
    is_rounding = parity.max_difference <= parity.bound
    is_another = len(apart) == len(parity.paths) and parity.reference == LOGGED
    these = "these code paths." if len(apart) > 1 else "this code path."
    why = "It is not the model that was trained." if is_another else f"The others agree, so the fault lies on {these}"
    if is_rounding:
        why = (
            f"Rounding ({parity.precision}) explains it, but rewards and orders would depend on the code path. Train "
            f"the model longer, so that its scores spread, or use a profile with precision float32."
        )
    reference = "training logged" if parity.reference == LOGGED else f"the code path `{parity.reference}` gives"
    return (
        f"No certificate: the reward model in {artifact} scores up to {parity.max_difference:.3g} away from what "
        f"{reference} for the same {parity.num_conversations} conversations; at most {parity.bound:.3g} is "
        f"allowed, {parity.margin_bound:.3g} for the margin of a pair ({MARGIN_SHARE:.0%} of a typical one), and "
        f"{parity.orders_bound} of {parity.num_pairs} orders changed. The code paths that differ are {named}. {why}"
    )


def _told(path: ParityPath, parity: ScoreParity) -> str:
    """The path with its difference, and with those of margins where a bound on margins is missed."""
    text = f"{path.name}: {path.max_difference:.3g}"
    if path.max_difference > parity.bound:
        return text
    return f"{text}, margins {path.max_margin_difference:.3g}, orders changed {path.num_orders_changed}"
