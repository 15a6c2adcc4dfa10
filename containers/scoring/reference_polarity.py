"""Detect inverted labels with a reference reward model: it then disagrees with most labels.

The third polarity check, beside known rows and the scores in the rows, and the only one for data without such scores.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from containers.contracts.configs.filter_dataset import REFERENCE_INPUT, PolaritySettings
from containers.contracts.funnel import ReferenceCheck
from containers.data.funnel import Split
from containers.data.rows import Pair, Turn
from containers.data.sources import PlacedRow
from containers.evals import polarity
from containers.evals.statistics import accuracy_metric
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError

if TYPE_CHECKING:
    from containers.scoring.scorer import RewardScorer


def checked_by_reference(
    context: StageContext,
    settings: PolaritySettings,
    rows: Sequence[PlacedRow],
    *,
    origins: Mapping[tuple[str, Split], str],
) -> tuple[ReferenceCheck, ...]:
    """Return the agreement of each source's labels with the reference reward model; empty if none is configured.

    Args:
        rows: the pairs that passed every filter.
        origins: name for messages, by name and split of the source.

    Raises:
        BadDataError: the model disagrees with most labels of a source, beyond chance.
        BadConfigError: max_length is more than the positions of the model.
        MissingPrerequisiteError: the model is no reward model, or damaged.
    """
    if settings.reference_reward_model is None:
        return ()
    model = context.input(REFERENCE_INPUT)
    scorer = _load_scorer(context, Path(model.path), settings)
    of_source: dict[tuple[str, Split], list[PlacedRow]] = defaultdict(list)
    for item in rows:
        of_source[item.source, item.split].append(item)
    checks = []
    for place, items in sorted(of_source.items()):
        sample = sample_pairs([item.row.pair for item in items], size=settings.num_pairs, seed=context.spec.seed)
        context.recorder.note(f"{origins[place]}: {model.origin} judges a sample of {len(sample):,} labels.")
        check = judged(scorer, sample, source=origins[place], model=model.origin, confidence=settings.confidence)
        context.recorder.note(verdict_on(check, origins[place], max_length=settings.max_length))
        if check is not None:
            checks.append(check)
    return tuple(checks)


def sample_pairs(pairs: Sequence[Pair], *, size: int, seed: int) -> list[Pair]:
    """Return at most `size` pairs, evenly over the domains as far as they suffice, and at most one per prompt."""
    by_domain: dict[str, dict[tuple[str, ...], Pair]] = defaultdict(dict)
    for pair in sorted(pairs, key=lambda pair: _drawn(pair, seed)):
        prompt = tuple(turn["content"] for turn in pair.prompt)
        by_domain[pair.domain].setdefault(prompt, pair)
    ranked = [(rank, domain, pair) for domain, kept in by_domain.items() for rank, pair in enumerate(kept.values())]
    return [pair for _, _, pair in sorted(ranked, key=lambda item: item[:2])[:size]]


def judged(
    scorer: "RewardScorer", pairs: Sequence[Pair], *, source: str, model: str, confidence: float
) -> ReferenceCheck | None:
    """Return how often the model scores the chosen response higher; None if it can score no pair.

    Pairs are left out and counted if they are too long for the model, if its chat template refuses them, or if they
    spell a token without a row in it. They say nothing about the data: another model will be trained.
    """
    sides = _tokens_of_both(scorer, pairs)
    fitting = [both for both in sides if max(map(len, both)) <= scorer.max_length]
    if not fitting:
        return None
    scores = scorer.score_tokens([ids for both in fitting for ids in both])
    margins = [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]
    found = accuracy_metric(margins, name="agreement", confidence=confidence)
    return ReferenceCheck(
        source=source,
        model=model,
        num_judged=len(margins),
        num_agreeing=sum(margin > 0 for margin in margins),
        num_equal=margins.count(0.0),
        num_over_long=len(sides) - len(fitting),
        num_unscorable=len(pairs) - len(sides),
        agreement=found.value,
        low=found.ci_low,
        high=found.ci_high,
        confidence=confidence,
    )


def _tokens_of_both(scorer: "RewardScorer", pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    """Return tokens of both sides of each pair that the model can read, whatever their length."""
    # Imported late, like the model.
    from containers.models.template_losses import refusals_of

    answered = [(_turns(pair, pair.chosen), _turns(pair, pair.rejected)) for pair in pairs]
    refused = {place // 2 for place in refusals_of(scorer.tokenizer, [side for both in answered for side in both])}
    taken = [side for place, both in enumerate(answered) if place not in refused for side in both]
    tokens = scorer.tokenize_all(taken)
    sides = zip(tokens[::2], tokens[1::2], strict=True)
    return [both for both in sides if not any(scorer.token_without_row(ids) for ids in both)]


def verdict_on(check: ReferenceCheck | None, source: str, *, max_length: int) -> str:
    """Return the result of the check as a sentence.

    Raises:
        BadDataError: the labels choose the response that the model scores lower, beyond chance.
    """
    if check is None:
        return (
            f"Warning: {source}: the reference reward model judged none: every pair of the sample is longer than "
            f"{max_length} tokens, or the model's own chat template refuses it, or it has a token without a row in the "
            f"model's embedding. Raise filter_dataset.polarity.max_length, or name another model in "
            f"filter_dataset.polarity.reference_reward_model."
        )
    left_out = f"; {check.num_over_long:,} pairs were too long" if check.num_over_long else ""
    if check.num_unscorable:
        left_out += (
            f"; {check.num_unscorable:,} pairs were left out, as the model's chat template refuses them or they have a "
            "token without a row in its embedding"
        )
    return polarity.verdict_on(
        check,
        judge=f"the reference reward model {check.model}",
        unit="pairs",
        left_out=left_out,
        if_inverted="Look at some pairs and correct the sign in the file; or, where you trust the labels more than "
        "this model, leave filter_dataset.polarity.reference_reward_model out.",
        if_undecided="Raise filter_dataset.polarity.num_pairs, or use a better reference model.",
    )


def _load_scorer(context: StageContext, folder: Path, settings: PolaritySettings) -> "RewardScorer":
    # Imported late: torch takes seconds, and the filter needs it for this only.
    from containers.distributed.devices import compute_device, compute_dtype
    from containers.models.loading import max_positions, reward_model_folder
    from containers.scoring.scorer import RewardScorer

    profile = context.spec.profile
    scorer = RewardScorer.load(
        reward_model_folder(folder),
        device=compute_device(profile),
        dtype=compute_dtype(profile),
        max_length=settings.max_length,
        batch_size=settings.batch_size,
    )
    positions = max_positions(scorer.model)
    if positions is not None and settings.max_length > positions:
        raise BadConfigError(
            f"filter_dataset.polarity.max_length is {settings.max_length:,} tokens, and the reference reward model "
            f"{context.input(REFERENCE_INPUT).origin} has {positions:,} positions: longer pairs would crash it, or get "
            f"meaningless scores. Set it to {positions} or less; longer pairs are counted and not scored."
        )
    return scorer


def _turns(pair: Pair, response: str) -> list[Turn]:
    return [*pair.prompt, {"role": "assistant", "content": response}]


def _drawn(pair: Pair, seed: int) -> str:
    return hashlib.sha256(f"{seed}\0polarity\0{pair.pair_id}".encode()).hexdigest()
