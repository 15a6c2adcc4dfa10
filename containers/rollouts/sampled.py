"""What policy and reference wrote on held-out prompts, as a file that every judge reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.harness.errors import MissingPrerequisiteError
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt

_SIDES = ("policy", "reference")


@dataclass(frozen=True)
class Sampled:
    """Prompts with as many completions each of policy and reference, by prompt.

    Attributes:
        policy: [prompts × completions of a prompt].
        log_ratios: log policy − log reference of the policy's completions, summed over tokens, in nats.
        opening: what the policy's chat template wrote after each prompt, such as `<think>`.
    """

    prompts: tuple[PolicyPrompt, ...]
    policy: tuple[Completion, ...]
    reference: tuple[Completion, ...]
    log_ratios: tuple[float, ...]
    opening: str

    @property
    def of_each(self) -> int:
        """Completions of a prompt."""
        return len(self.policy) // len(self.prompts)

    @property
    def repeated(self) -> list[PolicyPrompt]:
        """The prompt of each completion."""
        return [prompt for prompt in self.prompts for _ in range(self.of_each)]


def write_sampled(sampled: Sampled, path: Path) -> None:
    """Write one row for each prompt and number of completion."""
    rows: list[dict[str, Any]] = []
    for place, prompt in enumerate(sampled.repeated):
        row: dict[str, Any] = {
            "prompt_id": prompt.prompt_id,
            "domain": prompt.domain,
            "prompt": [dict(message) for message in prompt.conversation],
            "prompt_ids": list(prompt.token_ids),
            "answer": prompt.answer,
            "other_answers": list(prompt.other_answers),
            "columns": json.dumps(dict(prompt.columns)),
            "opening": sampled.opening,
            "number": place % sampled.of_each,
            "log_ratio": sampled.log_ratios[place],
        }
        for side in _SIDES:
            one: Completion = getattr(sampled, side)[place]
            row |= {side: one.text, f"{side}_ids": list(one.completion_ids), f"{side}_ended": one.ended}
        rows.append(row)
    schema = pa.Table.from_pylist(rows).schema
    for name, kind in (("answer", pa.string()), ("other_answers", pa.list_(pa.string()))):  # without one in any row
        schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def read_sampled(path: Path) -> Sampled:
    """Read what `write_sampled` wrote.

    Raises:
        MissingPrerequisiteError: the file is missing or damaged.
    """
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        prompts = tuple(_prompt(row) for row in rows if row["number"] == 0)
        policy, reference = (tuple(_completion(row, side) for row in rows) for side in _SIDES)
        log_ratios = tuple(float(row["log_ratio"]) for row in rows)
        return Sampled(prompts, policy, reference, log_ratios, rows[0]["opening"])
    except Exception as error:  # parquet raises many kinds
        raise MissingPrerequisiteError(f"{path} is no readable parquet file of completions: {error}") from error


def _prompt(row: Mapping[str, Any]) -> PolicyPrompt:
    turns: Sequence[Mapping[str, str]] = row["prompt"]
    return PolicyPrompt(
        prompt_id=row["prompt_id"],
        domain=row["domain"],
        conversation=tuple(dict(turn) for turn in turns),
        token_ids=tuple(row["prompt_ids"]),
        answer=row["answer"],
        columns=json.loads(row["columns"]),
        other_answers=tuple(row["other_answers"]),
    )


def _completion(row: Mapping[str, Any], side: str) -> Completion:
    return Completion(tuple(row["prompt_ids"]), tuple(row[f"{side}_ids"]), text=row[side], ended=row[f"{side}_ended"])
