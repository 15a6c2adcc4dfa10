"""Read the suites of the certificate, and score every response of every item."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from pathlib import Path

from containers.contracts.certificate import TEST_SUITE
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import TEST_PAIRS_FILE
from containers.contracts.registries import BENCHMARKS
from containers.data.pairs import read_pair_rows
from containers.distributed.ranks import spread_over_ranks
from containers.evals.scored_suite import ScoredSuite
from containers.evals.suites.base import Comparison, ScoredItem, SuiteItem, SuiteRows
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError
from containers.models.template_losses import TemplateLosses, refusals_of
from containers.scoring.scorer import Conversation, RewardScorer

# Responses scored between two progress lines.
_CHUNK_RESPONSES = 1024


def read_suites(context: StageContext, config: EvaluateRewardModelConfig) -> list[ScoredSuite]:
    """Read every suite, without scores; the test pairs come first.

    Raises:
        BadDataError: a suite's files are damaged, or lack columns that its benchmark needs.
    """
    suites = [_test_pairs(context)]
    for suite in config.suites:
        item = context.input(f"suite_{suite.name}")
        benchmark = BENCHMARKS[suite.benchmark]
        try:
            rows = benchmark.read(Path(item.path))
        except BadDataError as error:
            raise BadDataError(f"Suite {suite.name} ({suite.benchmark}): {error}") from error
        if rows.left_out:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(rows.left_out.items()))
            context.recorder.note(f"{suite.name}: rows left out. {reasons}.")
        suites.append(
            ScoredSuite(
                name=suite.name,
                benchmark=benchmark,
                rows=rows,
                origin=item.origin or suite.path,
                digest=item.digest,
                minimum_accuracy=suite.minimum_accuracy,
            )
        )
    return suites


def without_refused(context: StageContext, scorer: RewardScorer, suite: ScoredSuite) -> ScoredSuite:
    """Return the suite without the items that the reward model's chat template refuses; count and note these.

    A suite is no reason to train the reward model again: Gemma's template takes no system prompts, and a suite may have
    a few. If the template leaves out a turn of an item, the item stays, with a warning.
    """
    losses = TemplateLosses()
    answered = [conversation(item, item.responses[0]) for item in suite.rows.items]
    refusals = refusals_of(scorer.tokenizer, answered, losses=losses)
    if words := losses.text():
        context.recorder.note(f"{suite.name}: {words}")
    if not refusals:
        return suite
    reasons = ", ".join(f"`{reason}` {count:,}" for reason, count in Counter(refusals.values()).most_common())
    context.recorder.note(
        f"Warning: {suite.name}: {len(refusals):,} of {len(answered):,} items are left out, because the reward model's "
        f"chat template refuses them ({reasons}). Train it with another one (train_reward_model.chat_template) to have "
        "them scored."
    )
    return _without(suite, refusals, reason="template_refuses")


def _without(suite: ScoredSuite, places: Collection[int], *, reason: str) -> ScoredSuite:
    """Return the suite without the items at these places, which are counted under the reason."""
    left_out = {**suite.rows.left_out, reason: len(places)}
    items = tuple(item for place, item in enumerate(suite.rows.items) if place not in places)
    return replace(suite, rows=replace(suite.rows, items=items, left_out=left_out))


def score_suite(context: StageContext, scorer: RewardScorer, suite: ScoredSuite) -> ScoredSuite:
    """Return the suite with its scores; leave out, count and note items with a response longer than max_length."""
    items = suite.rows.items
    tokens = iter(scorer.tokenize_all([conversation(item, text) for item in items for text in item.responses]))
    with_tokens = [(item, list(islice(tokens, len(item.responses)))) for item in items]
    fitting = [(item, sides) for item, sides in with_tokens if max(map(len, sides)) <= scorer.max_length]
    over_long = len(items) - len(fitting)
    if over_long:
        context.recorder.note(f"{suite.name}: {over_long:,} items left out, longer than {scorer.max_length} tokens.")
    kept = [ids for _, sides in fitting for ids in sides]
    scores: list[float] = []
    for start in range(0, len(kept), _CHUNK_RESPONSES):
        scores += spread_over_ranks(kept[start : start + _CHUNK_RESPONSES], scorer.score_tokens)
        context.recorder.progress(len(scores), len(kept), unit="responses", text=suite.name)
    left = iter(scores)
    scored = [ScoredItem(item, tuple(islice(left, len(item.responses)))) for item, _ in fitting]
    return suite.with_scores(scored, num_over_long=over_long)


def without_strange_tokens(context: StageContext, scorer: RewardScorer, suite: ScoredSuite) -> ScoredSuite:
    """Return the suite without items that spell a token for which the model has no row; count and note these."""
    if scorer.has_all_rows:
        return suite
    found: dict[int, str] = {}
    for place, item in enumerate(suite.rows.items):
        for ids in scorer.tokenize_all([conversation(item, response) for response in item.responses]):
            if token := scorer.token_without_row(ids):
                found[place] = token
    if not found:
        return suite
    context.recorder.note(
        f"Warning: {suite.name}: {len(found):,} items are left out, because they spell a token that the reward model "
        f"has no row for: {', '.join(sorted(set(found.values())))}."
    )
    return _without(suite, found, reason="token_without_row")


def conversation(item: SuiteItem, response: str) -> Conversation:
    """The item's prompt, answered with that response."""
    return [*item.prompt, {"role": "assistant", "content": response}]


def _test_pairs(context: StageContext) -> ScoredSuite:
    """The test pairs of the run's own dataset."""
    pairs = context.input("pairs")
    rows = read_pair_rows(Path(pairs.path), TEST_PAIRS_FILE)
    items = tuple(
        SuiteItem(
            item_id=row["pair_id"],
            prompt=tuple(row["prompt"]),
            responses=(row["chosen"][-1]["content"], row["rejected"][-1]["content"]),
            subset=row["domain"] or "not named",
            comparisons=(Comparison(0, 1),),
            line=line,
        )
        for line, row in enumerate(rows, start=1)
    )
    return ScoredSuite(
        name=TEST_SUITE,
        benchmark=BENCHMARKS["pairs"],
        rows=SuiteRows(items=items, rows_read=len(rows)),
        origin=pairs.origin,
        digest=pairs.digest,
        strengths={row["pair_id"]: float(row["margin"]) for row in rows},
    )
