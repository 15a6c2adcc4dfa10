"""Build contests from the evaluations of champion and challenger. Reads parquet files; starts nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from containers.contracts.certificate import Certificate
from containers.contracts.champions import Contest
from containers.contracts.names import (
    CERTIFICATE_FILE,
    COMPLETIONS_FILE,
    POLICY_TRAIN_PROMPTS_FILE,
    TRAIN_PAIRS_FILE,
)
from containers.data.rows import prompt_identity
from containers.evals.statistics import clustered_difference
from tasks.config.retrain import RetrainRules

FROZEN_PAIRS = "the frozen pairs"
FROZEN_PROMPTS = "the frozen prompts"

_VALIDATION = "validation"
_RIGHT = {"policy": 1.0, "tie": 0.5, "reference": 0.0}


@dataclass(frozen=True)
class _Item:
    """One pair or prompt: its prompt, and the model's result on it, from 0 to 1."""

    prompt_id: str
    value: float


def training_prompts(pairs: Path, *, with_policy: bool) -> frozenset[str]:
    """Identities of the prompts that a model was trained on, from the artifact of filter_dataset."""
    files = [TRAIN_PAIRS_FILE, *([POLICY_TRAIN_PROMPTS_FILE] if with_policy else [])]
    found: set[str] = set()
    for file in files:
        for batch in pq.ParquetFile(pairs / file).iter_batches(columns=["prompt"]):
            found.update(prompt_identity(turns) for turns in batch.column("prompt").to_pylist())
    return frozenset(found)


def reward_model_contests(
    champion: Path, challenger: Path, *, seen: frozenset[str], rules: RetrainRules
) -> tuple[Contest, ...]:
    """Accuracy on the frozen pairs, then on each pair file, from two evaluations that read the same files.

    Args:
        seen: prompts that one of the two was trained on; their pairs are left out for both.
    """
    contests = []
    certificate = Certificate.model_validate_json((challenger / CERTIFICATE_FILE).read_bytes())
    for file in certificate.suites:
        is_first = file.name == _VALIDATION
        contests.append(
            _contest(
                _scored(champion / file.scores_file),
                _scored(challenger / file.scores_file),
                name=FROZEN_PAIRS if is_first else file.name,
                measure="accuracy",
                seen=seen,
                rules=rules,
                budget=None if is_first else rules.budget_of(file.name),
            )
        )
    return tuple(contests)


def policy_contest(evaluation: Path, *, seen: frozenset[str], rules: RetrainRules) -> Contest:
    """Win rate on the frozen prompts, from an evaluation whose reference is the champion.

    A prompt counts as won where the challenger wins more than half of its completions.
    """
    answered: dict[str, list[float]] = {}
    for row in _rows(evaluation / COMPLETIONS_FILE, ("prompt_id", "winner")):
        answered.setdefault(row["prompt_id"], []).append(_RIGHT[row["winner"]])
    challenger = {name: _Item(name, sum(values) / len(values)) for name, values in answered.items()}
    champion = {name: _Item(name, 1 - item.value) for name, item in challenger.items()}
    return _contest(champion, challenger, name=FROZEN_PROMPTS, measure="win rate", seen=seen, rules=rules, budget=None)


def _contest(
    champion: Mapping[str, _Item],
    challenger: Mapping[str, _Item],
    *,
    name: str,
    measure: Literal["accuracy", "win rate"],
    seen: frozenset[str],
    rules: RetrainRules,
    budget: float | None,
) -> Contest:
    shared = [key for key in champion if key in challenger]
    clean = [key for key in shared if champion[key].prompt_id not in seen]
    found = None
    if clean:
        found = clustered_difference(
            [challenger[key].value - champion[key].value for key in clean],
            [champion[key].prompt_id for key in clean],
            confidence=rules.confidence,
        )
    return Contest(
        name=name,
        measure=measure,
        count=len(clean),
        seen_in_training=len(shared) - len(clean),
        not_in_both=len(champion.keys() | challenger.keys()) - len(shared),
        champion=_mean(champion[key].value for key in clean),
        challenger=_mean(challenger[key].value for key in clean),
        difference=found.difference if found else None,
        num_better=found.num_better if found else 0,
        num_worse=found.num_worse if found else 0,
        p_value=found.p_value if found else 1.0,
        budget=budget,
    )


def _scored(path: Path) -> dict[str, _Item]:
    """Each pair: 1 if the chosen completion scores higher, 0.5 for equal scores, else 0."""
    columns = ("pair_id", "prompt_id", "score_chosen", "score_rejected")
    return {
        row["pair_id"]: _Item(row["prompt_id"], _right(row["score_chosen"] - row["score_rejected"]))
        for row in _rows(path, columns)
    }


def _right(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path, columns=list(columns)).to_pylist()
    return rows


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None
