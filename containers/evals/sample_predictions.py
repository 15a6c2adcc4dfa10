"""Pairs with their scores, as the training stage logs them and the evaluation stage checks them again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from containers.contracts.records import SamplePrediction
from containers.harness.errors import MissingPrerequisiteError

SAMPLE_PREDICTIONS_FILE = "sample_predictions.json"
# Scores of the same conversations by each copy that training loaded back from disk, by the copy's folder.
RELOADED_SCORES_FILE = "reloaded_scores.json"
# 64 conversations.
NUM_RELOAD_PAIRS = 32
_SAMPLES = TypeAdapter(tuple[SamplePrediction, ...])
_SCORES = TypeAdapter(dict[str, tuple[float, ...]])


def sample_predictions(
    rows: Sequence[dict[str, Any]], scores: Sequence[tuple[float, float]], *, limit: int = NUM_RELOAD_PAIRS
) -> tuple[SamplePrediction, ...]:
    """The first `limit` rows with their two scores; rows are as `data.pairs` reads them."""
    return tuple(
        SamplePrediction.model_validate(
            {
                "prompt": tuple(row["prompt"]),
                "chosen": row["chosen"][-1]["content"],
                "rejected": row["rejected"][-1]["content"],
                "score_chosen": chosen,
                "score_rejected": rejected,
                "domain": row["domain"] or "",
            }
        )
        for row, (chosen, rejected) in zip(rows[:limit], scores[:limit], strict=True)
    )


def write_sample_predictions(folder: Path, samples: Sequence[SamplePrediction]) -> None:
    """Write sample_predictions.json into `folder`."""
    text = json.dumps([sample.model_dump() for sample in samples], indent=2, ensure_ascii=False, allow_nan=False)
    (folder / SAMPLE_PREDICTIONS_FILE).write_text(text, encoding="utf-8")


def read_sample_predictions(folder: Path) -> tuple[SamplePrediction, ...]:
    """The samples of a reward-model artifact.

    Raises:
        MissingPrerequisiteError: the file is missing, damaged or empty.
    """
    path = folder / SAMPLE_PREDICTIONS_FILE
    try:
        samples = _SAMPLES.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise MissingPrerequisiteError(f"{path} cannot be read: {error}") from error
    if not samples:
        raise MissingPrerequisiteError(f"{path} is empty: saved and trained reward model cannot be compared.")
    return samples


def write_reloaded_scores(folder: Path, scores: Mapping[str, Sequence[float]]) -> None:
    """Write reloaded_scores.json: for each copy, chosen and rejected of each logged sample in turn."""
    (folder / RELOADED_SCORES_FILE).write_text(json.dumps(scores, indent=2, allow_nan=False), encoding="utf-8")


def read_reloaded_scores(folder: Path) -> dict[str, tuple[float, ...]]:
    """Read the scores of each copy that training reloaded; empty if there is no such file.

    Raises:
        MissingPrerequisiteError: the file is damaged.
    """
    path = folder / RELOADED_SCORES_FILE
    if not path.is_file():
        return {}
    try:
        return _SCORES.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise MissingPrerequisiteError(f"{path} cannot be read: {error}") from error


def both_conversations(sample: SamplePrediction) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Prompt plus chosen, prompt plus rejected."""
    prompt = [message.model_dump() for message in sample.prompt]
    return (
        [*prompt, {"role": "assistant", "content": sample.chosen}],
        [*prompt, {"role": "assistant", "content": sample.rejected}],
    )
