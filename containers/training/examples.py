"""Training examples of train_sft, train_reward_model and train_dpo: tokenised rows that can be used; the schedule."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.schedule import ResolvedSchedule, ScheduleError, resolve_schedule
from containers.data.pairs import PAIR_FILES, Row, RowFiles, read_policy_prompts
from containers.distributed.ranks import any_rank, is_first_rank, of_all_ranks, spread_over_ranks
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, StageError
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import prompt_token_ids, tokens_of_all
from containers.models.tokenizer_loading import load_tokenizer, token_without_row, without_row_text
from containers.training.token_cache import (
    MadeTokens,
    SplitExamples,
    keep_tokens,
    tokens_key,
    tokens_of_earlier_attempt,
)

Item = TypeVar("Item")
Value = TypeVar("Value")

# Share of the examples for which messages say how many tokens would keep them.
_MOST = 0.95


class Tokenised(Protocol):
    """Makes the tokens of pairs; see `read_training_examples`."""

    def __call__(self, rows: Sequence[Row], *, losses: TemplateLosses) -> list[list[Row]]:
        """Return the fields of each pair's examples; `losses` counts what the chat template leaves out."""
        ...


@dataclass(frozen=True)
class TrainingExamples:
    """Both splits of a training stage."""

    train: SplitExamples
    validation: SplitExamples


def read_training_examples(
    context: StageContext,
    config: TrainSftConfig | TrainRewardModelConfig | TrainDpoConfig | ComputeReferenceConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    tokenised: Tokenised,
    token_fields: Sequence[str],
    num_rows: int,
    unit: str,
    files: RowFiles = PAIR_FILES,
    section: str = "",
) -> TrainingExamples:
    """Tokenise both splits of the stage's rows; leave out examples that are too long or have a token without a row.

    TRL would drop or cut long examples silently, and fail on a token without a row (a text may spell a special token).
    What the chat template leaves out of the rows, or of the policy's prompts beside them, is noted. Each rank tokenises
    its share of the rows. The tokens are kept for the next attempt.

    Args:
        tokenised: returns the new fields of each row's examples, beside the row's own: lists of integers.
        token_fields: the fields of an example that hold token ids; each alone must fit.
        num_rows: rows of the model's embedding.
        unit: name of the examples, in the plural.
        files: where the rows are.
        section: of the run that has `max_length`; empty: the stage's own.

    Raises:
        BadDataError: no example of a split fits (with the lengths), or too many have a token without a row.
        BadConfigError: the template refuses a pair, or a prompt of the policy with an answer.
    """
    key = tokens_key(context, config, tokenizer, files)
    kept = tokens_of_earlier_attempt(context, key)
    found: dict[str, SplitExamples] = {}
    examples, losses = [], TemplateLosses()
    for file, name in ((files.train, "training"), (files.validation, "validation")):
        rows = files.read(context.input_path(files.role), file)
        if kept is None:
            work = partial(_of_share, tokenised=partial(tokenised, losses=losses), all_rows=rows)
            found[file] = _that_fit(
                spread_over_ranks(rows, work),
                tokenizer=tokenizer,
                token_fields=token_fields,
                num_rows=num_rows,
                name=f"{name} {unit}",
                setting=f"{section or config.stage}.max_length",
                max_length=config.max_length,
            )
        split = found[file] if kept is None else kept.splits[file]
        if split.left_out_text:
            context.recorder.note(split.left_out_text)
        whole = [{**rows[place], **example} for place, example in zip(split.places, split.kept, strict=True)]
        examples.append(replace(split, kept=whole))
    words = _losses_text(context.input_path(files.role), tokenizer, losses) if kept is None else kept.losses_text
    if words:
        context.recorder.note(words)
    if kept is None:
        keep_tokens(context, MadeTokens(splits=found, losses_text=words), key)
    return TrainingExamples(*examples)


def _of_share(
    rows: Sequence[Item], *, tokenised: Callable[[Sequence[Item]], list[Value]], all_rows: Sequence[Item]
) -> list[Value]:
    """Tokenise this rank's share. If any rank fails, all raise the same error, which counts all rows."""
    found, error = [], None
    try:
        found = tokenised(rows)
    except BadConfigError as raised:
        error = raised
    if any_rank(error is not None):
        tokenised(all_rows)
        raise error or StageError("Another rank could not make tokens of its share of the rows, and this one could.")
    return found


def _that_fit(
    examples_of_pairs: Sequence[list[Row]],
    *,
    tokenizer: PreTrainedTokenizerBase,
    token_fields: Sequence[str],
    num_rows: int,
    name: str,
    setting: str,
    max_length: int,
) -> SplitExamples:
    """Return the examples with at most `max_length` tokens, each of which has a row in the embedding.

    Args:
        setting: the key of `max_length`, for the messages.

    Raises:
        BadDataError: no example is short enough (says which length would keep most), or too many have a token
            without a row.
    """
    examples = [(place, example) for place, of_pair in enumerate(examples_of_pairs) for example in of_pair]
    lengths = [max(len(example[field]) for field in token_fields) for _, example in examples]
    short = [item for item, length in zip(examples, lengths, strict=True) if length <= max_length]
    most = sorted(lengths)[math.ceil(_MOST * len(lengths)) - 1]
    spread = f"{_MOST:.0%} of all have at most {most:,} tokens, the longest {max(lengths):,}"
    if not short:
        raise BadDataError(
            f"Not one of {len(examples):,} {name} fits in {setting} {max_length}: the shortest has {min(lengths):,} "
            f"tokens; {spread}. Raise {setting} to {most} to keep most of them."
        )
    without = [
        next(filter(None, (token_without_row(tokenizer, item[field], num_rows=num_rows) for field in token_fields)), "")
        for _, item in short
    ]
    kept = [item for item, token in zip(short, without, strict=True) if not token]
    words = []
    if num_over_long := len(examples) - len(short):
        words.append(
            f"{num_over_long:,} of {len(examples):,} {name} are left out: longer than {max_length} tokens ({setting}). "
            f"{spread}."
        )
    if any(without):
        words.append(without_row_text(without, name=name, num_rows=num_rows))
    return SplitExamples(
        places=[place for place, _ in kept],
        kept=[example for _, example in kept],
        num_over_long=num_over_long,
        num_without_row=len(short) - len(kept),
        left_out_text=" ".join(words),
    )


def _losses_text(folder: Path, tokenizer: PreTrainedTokenizerBase, losses: TemplateLosses) -> str:
    """Return what the chat template leaves out of the rows and of the policy's prompts, before training.

    The policy's prompts are not among the rows; without this check the policy would fail on them hours later.

    Args:
        folder: the artifact with the rows.
        losses: those of this rank's share of the rows; the prompts are counted with them.

    Raises:
        BadConfigError: the template refuses a prompt of the policy with an answer.
    """
    answer = {"role": "assistant", "content": "answer"}
    prompts = read_policy_prompts(folder)

    def tried(share: Sequence[Any]) -> list[None]:
        tokens_of_all(tokenizer, [[*prompt, answer] for prompt in share], losses=losses)
        return [None] * len(share)

    spread_over_ranks(prompts, partial(_of_share, tokenised=tried, all_rows=prompts))
    return TemplateLosses.together(of_all_ranks(losses)).text()


def note_policy_template(context: StageContext) -> None:
    """Warn if the start model's own chat template refuses the policy's prompts.

    Without train_sft the policy uses that template, hours later, whatever template the reward model has.
    """
    if not is_first_rank():
        return
    start = context.input("start_model")
    try:
        tokenizer = load_tokenizer(Path(start.path), origin=start.origin)
        prompts = read_policy_prompts(context.input_path("pairs"))
        prompt_token_ids(tokenizer, prompts)
    except BadConfigError as error:
        context.recorder.note(f"Warning: A policy that starts from this model without train_sft would fail: {error}")


def resolve_training_schedule(
    context: StageContext, config: TrainSftConfig | TrainRewardModelConfig | TrainDpoConfig, examples: TrainingExamples
) -> ResolvedSchedule:
    """Return the stage's schedule with every number filled in.

    Raises:
        BadConfigError: the schedule cannot work with this number of examples; says how many max_length left out.
    """
    try:
        return resolve_schedule(
            config.schedule,
            num_examples=len(examples.train.kept),
            global_batch_size=context.spec.batch.global_batch_size,
            num_eval_examples=len(examples.validation.kept),
        )
    except ScheduleError as error:
        message = f"{config.stage}.schedule: {error} {examples.train.left_out_text}"
        raise BadConfigError(message.rstrip()) from error


def as_dataset(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Dataset:
    """Return these columns of the rows as an in-memory dataset, without a cache on disk."""
    return Dataset.from_list([{name: row[name] for name in columns} for row in rows])
