"""score_file: score the rows of a file with a reward model; one line of JSON per row, in order, and overall figures."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from jinja2.exceptions import TemplateError

from containers.contracts.certificate import SCORE_STATISTICS_FILE, ScoreStatistics
from containers.contracts.configs.score_file import ScoreFileConfig
from containers.contracts.names import SCORES_FILE
from containers.contracts.outcome import Metric
from containers.evals.score_rows import RowToScore, read_rows_to_score
from containers.evals.scored_rows import ScoredRow, Tally
from containers.formatting import one_line
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, DivergedError, MissingPrerequisiteError
from containers.models.loading import (
    load_tokenizer,
    max_positions,
    require_own_tokenizer,
    reward_model_folder,
)
from containers.models.over_gpus import reward_model_over_gpus
from containers.scoring.scorer import RewardScorer

# Number of rows whose conversations are sorted by length together; progress is reported after each chunk.
_CHUNK_ROWS = 512
_SEEN_CHARACTERS = 120
_REASONS_TOLD = 8
_OTHER_RESPONSE = "Something else altogether."


def run(context: StageContext) -> tuple[Metric, ...]:
    """Write `scores.jsonl`; return the figures.

    Raises:
        BadDataError: the file is damaged, its columns are not known, or none of its rows can be scored.
        BadConfigError: max_length is more than the model has positions.
        MissingPrerequisiteError: the model is no reward model, or lacks the score statistics that `normalise` needs.
        DivergedError: a score is not finite; names the row.
    """
    config = context.spec.config
    if not isinstance(config, ScoreFileConfig):
        raise BadConfigError(f"score_file was given the config of {config.stage}.")
    rows = list(read_rows_to_score(context.input_path("rows")))
    _demand_rows(rows, Counter(row.reason for row in rows if row.reason), context)
    model = reward_model_folder(context.input_path("reward_model"))
    statistics = _statistics(model, context) if config.normalise else None
    scorer = _scorer(context, config, model)
    tally, started = Tally(), time.monotonic()
    with open(context.output / SCORES_FILE, "w", encoding="utf-8") as stream:
        for scored in score_rows(rows, scorer):
            tally.add(scored)
            record = scored.record(statistics)
            stream.write(f"{json.dumps(record, ensure_ascii=False, allow_nan=False)}\n")
            if tally.num_rows % _CHUNK_ROWS == 0 or tally.num_rows == len(rows):
                context.recorder.progress(tally.num_rows, len(rows), unit="rows")
    _demand_rows(rows, tally.not_scored, context)
    return tally.metrics(confidence=config.confidence, seconds=time.monotonic() - started)


def score_rows(rows: Iterable[RowToScore], scorer: RewardScorer) -> Iterator[ScoredRow]:
    """Yield every row, in order, with its scores or the reason why it has none.

    Raises:
        DivergedError: a score is not finite; names the row.
    """
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK_ROWS)):
        yield from _score_chunk(chunk, scorer)


def _score_chunk(chunk: Sequence[RowToScore], scorer: RewardScorer) -> list[ScoredRow]:
    found = [_unscorable(row, scorer) for row in chunk]
    good = [place for place, scored in enumerate(found) if not scored.reason]
    conversations = [chunk[place].conversation(side) for place in good for side in range(len(chunk[place].responses))]
    tokens = iter(scorer.tokenize_all(conversations))
    kept: dict[int, list[list[int]]] = {}
    for place in good:
        sides = [next(tokens) for _ in chunk[place].responses]
        longest = max(range(len(sides)), key=lambda side: len(sides[side]))
        if len(sides[longest]) > scorer.max_length:
            which = f"response {longest + 1} of {len(sides)}: " if len(sides) > 1 else ""
            seen = f"{which}{len(sides[longest]):,} tokens, at most {scorer.max_length:,}"
            found[place] = ScoredRow(chunk[place], reason="too_long", seen=seen)
        elif token := next(filter(None, map(scorer.token_without_row, sides)), ""):
            found[place] = ScoredRow(chunk[place], reason="token_without_row", seen=token)
        else:
            kept[place] = sides
    try:
        scores = iter(scorer.score_tokens([ids for sides in kept.values() for ids in sides]))
    except DivergedError as error:
        raise DivergedError(_first_not_finite([(chunk[place], kept[place]) for place in kept], scorer)) from error
    for place, sides in kept.items():
        found[place] = ScoredRow(chunk[place], scores=tuple(next(scores) for _ in sides))
    return found


def _unscorable(row: RowToScore, scorer: RewardScorer) -> ScoredRow:
    """Return the row, with a reason if it has one already or if the chat template refuses or drops its response."""
    if row.reason:
        return ScoredRow(row, reason=row.reason, seen=row.seen)
    try:
        texts = [_rendered(row.conversation(side), scorer) for side in range(len(row.responses))]
        other = _rendered([*row.prompt, {"role": "assistant", "content": _OTHER_RESPONSE}], scorer)
    except TemplateError as error:
        return ScoredRow(row, reason="template_refuses", seen=str(error))
    dropped = [text for text, response in zip(texts, row.responses, strict=True) if response != _OTHER_RESPONSE]
    if other in dropped:
        return ScoredRow(row, reason="template_drops_response", seen=row.responses[0])
    return ScoredRow(row)


def _rendered(conversation: Sequence[dict[str, str]], scorer: RewardScorer) -> str:
    return str(scorer.tokenizer.apply_chat_template([dict(turn) for turn in conversation], tokenize=False))


def _first_not_finite(rows: Sequence[tuple[RowToScore, list[list[int]]]], scorer: RewardScorer) -> str:
    for row, sides in rows:
        try:
            scorer.score_tokens(sides)
        except DivergedError as error:
            place = f"{row.file}, row {row.line}" if row.file else f"Row {row.line}"
            return f"{place}: {error}"
    return "Scores are not finite where rows are scored together, and finite one by one. The model cannot be used."


def _demand_rows(rows: Sequence[RowToScore], not_scored: Counter[str], context: StageContext) -> None:
    if not_scored.total() < len(rows):
        return
    item = context.input("rows")
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in not_scored.most_common(_REASONS_TOLD))
    first = next(
        (f" The first: row {row.line}: {one_line(row.seen, _SEEN_CHARACTERS)}." for row in rows if row.seen), ""
    )
    raise BadDataError(
        f"Not one of the {len(rows):,} rows of {item.origin or item.path} can be scored"
        + (f": {reasons}.{first}" if reasons else ".")
    )


def _statistics(folder: Path, context: StageContext) -> ScoreStatistics:
    path, item = folder / SCORE_STATISTICS_FILE, context.input("reward_model")
    try:
        found = ScoreStatistics.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds something else"
        raise MissingPrerequisiteError(
            f"--normalise needs the mean and standard deviation that this project saves with a reward model, and "
            f"{path.name} of {item.origin or folder} cannot be read: {why}. Leave --normalise out."
        ) from error
    if found.standard_deviation == 0:
        raise MissingPrerequisiteError(
            f"--normalise cannot divide by a standard deviation of 0 ({item.origin or folder}): the model gave all "
            f"{found.num_scores:,} conversations the same score. Leave --normalise out."
        )
    return found


def _scorer(context: StageContext, config: ScoreFileConfig, folder: Path) -> RewardScorer:
    profile = context.spec.profile
    model, spread = reward_model_over_gpus(folder, profile)
    tokenizer = load_tokenizer(folder, origin=context.input("reward_model").origin)
    require_own_tokenizer(model, tokenizer, folder=folder)
    positions = max_positions(model)
    max_length = config.max_length or positions
    if max_length is None:
        raise BadConfigError(
            f"{type(model).__name__} names no number of positions, so the longest allowed conversation is not known. "
            "Set it with --max-length TOKENS."
        )
    if positions is not None and max_length > positions:
        raise BadConfigError(
            f"max_length {max_length:,} is more than the {positions:,} positions of the reward model. Lower it, "
            f"or leave it out to use all of them."
        )
    return RewardScorer(
        model,
        tokenizer,
        max_length=max_length,
        batch_size=config.batch_size,
        batch_tokens=config.batch_tokens,
        spread=spread,
    )
