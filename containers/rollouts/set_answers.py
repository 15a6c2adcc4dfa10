"""What a model answers to a standard set, turn by turn, and the file that keeps the answers of all models."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.distributed.spread import Spread
from containers.evals.sets.base import SetItem
from containers.harness.errors import MissingPrerequisiteError
from containers.models.loading import position_limit
from containers.models.over_gpus import Writer
from containers.models.token_batches import prompt_token_ids
from containers.rollouts.generate import Completion, generate_completions

_END_OF_THOUGHT, _THOUGHT = "</think>", "<think>"
_SCHEMA = pa.schema(
    [
        ("set", pa.string()),
        ("model", pa.string()),
        ("item_id", pa.string()),
        ("prompt_id", pa.string()),
        ("subset", pa.string()),
        ("number", pa.int64()),
        ("texts", pa.list_(pa.string())),
        ("ended", pa.bool_()),
        ("num_tokens", pa.int64()),
        ("problem", pa.string()),
        ("value", pa.float64()),
    ]
)


@dataclass(frozen=True)
class SetAnswer:
    """One answer of one model to an item of a set.

    Attributes:
        number: of the answer, where an item has several.
        texts: one for each turn, without thoughts.
        ended: whether every turn ended by itself.
        num_tokens: of all turns.
        problem: why there is no answer; empty: there is one.
        value: 1 right, 0 wrong, of a task whose harness says so; None: a rule will.
    """

    set: str
    model: str
    item_id: str
    prompt_id: str
    subset: str
    number: int
    texts: tuple[str, ...]
    ended: bool
    num_tokens: int
    problem: str = ""
    value: float | None = None

    @property
    def text(self) -> str:
        """The answer to the last turn."""
        return self.texts[-1] if self.texts else ""


def asked(item: SetItem, task: StandardSet) -> list[dict[str, str]]:
    """Return the first turns of an item, with the instruction of its set after the question."""
    turns = [dict(turn) for turn in item.prompt]
    if task.instruction:
        turns[-1]["content"] = f"{turns[-1]['content'].rstrip()}\n\n{task.instruction}"
    return turns


def answers_of(
    model: Any,
    tokenizer: Any,
    items: Sequence[SetItem],
    task: StandardSet,
    config: AnswerSetsConfig,
    *,
    batch_size: Callable[[int], int],
    name: str,
    seed: int,
    on_batch: Callable[[int], None],
    spread: Spread[Writer] | None = None,
) -> list[SetAnswer]:
    """Return the model's answers to every item, in order; of each as many as are configured.

    Args:
        batch_size: how many of a number of prompts are a batch, at most.
        name: of the model in the file.
        on_batch: called with the number of answers so far, of all turns.
        spread: programs on further GPUs with the same model.
    """
    longest = task.max_completion_length or config.max_completion_length
    limit = min(config.max_prompt_length, max(1, position_limit(model) - longest))
    found = [
        SetAnswer(task.name, name, item.item_id, item.prompt_id, item.subset, number, (), True, 0)
        for item in items
        for number in range(config.completions_per_item)
    ]
    repeated = [item for item in items for _ in range(config.completions_per_item)]
    talks = [asked(item, task) for item in repeated]
    done = 0
    for turn in range(1 + max((len(item.further) for item in items), default=0)):
        going = [place for place, item in enumerate(repeated) if turn <= len(item.further) and not found[place].problem]
        for place in going if turn else ():
            talks[place] += [
                {"role": "assistant", "content": found[place].text},
                {"role": "user", "content": repeated[place].further[turn - 1]},
            ]
        ids = prompt_token_ids(tokenizer, [talks[place] for place in going], thinks=config.enable_thinking)
        fitting = [place for place, tokens in zip(going, ids, strict=True) if len(tokens) <= limit]
        for place in set(going) - set(fitting):
            found[place] = replace(found[place], problem=f"longer than {limit} tokens")
        written = generate_completions(
            model,
            tokenizer,
            [tokens for tokens in ids if len(tokens) <= limit],
            max_new_tokens=longest,
            temperature=config.temperature,
            batch_size=max(1, batch_size(len(fitting))),
            seed=seed + turn,
            on_batch=lambda count, before=done: on_batch(before + count),  # type: ignore[misc]
            spread=spread,
        )
        done += len(written)
        for place, completion in zip(fitting, written, strict=True):
            found[place] = _with_turn(found[place], completion, thinks=config.enable_thinking)
    return found


def _with_turn(answer: SetAnswer, completion: Completion, *, thinks: bool) -> SetAnswer:
    return replace(
        answer,
        texts=(*answer.texts, without_thought(completion.text, thinks=thinks)),
        ended=answer.ended and completion.ended,
        num_tokens=answer.num_tokens + len(completion.completion_ids),
    )


def without_thought(text: str, *, thinks: bool) -> str:
    """Return what follows the model's thought; nothing if the thought was cut off.

    Args:
        thinks: the chat template opened a thought, whose beginning is then not in the text.

    Example: `<think>2 + 2</think> 4` gives `4`.
    """
    before, end, after = text.rpartition(_END_OF_THOUGHT)
    if end:
        return after.lstrip()
    return "" if thinks or before.lstrip().startswith(_THOUGHT) or after.lstrip().startswith(_THOUGHT) else text


def write_answers(answers: Sequence[SetAnswer], path: Path) -> None:
    """Write a row for each answer."""
    rows = [{**asdict(answer), "texts": list(answer.texts)} for answer in answers]
    parquet.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)


def read_answers(path: Path) -> list[SetAnswer]:
    """Read what `write_answers` wrote.

    Raises:
        MissingPrerequisiteError: the file is missing or damaged.
    """
    try:
        rows = parquet.read_table(path).to_pylist()
        return [SetAnswer(**{**row, "texts": tuple(row["texts"])}) for row in rows]
    except Exception as error:  # parquet raises many kinds
        raise MissingPrerequisiteError(f"{path} is no readable parquet file of answers: {error}") from error
