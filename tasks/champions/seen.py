"""The prompts that a version was trained on, and the frozen prompts that are like one of them."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from containers.contracts.names import POLICY_TRAIN_PROMPTS_FILE, TRAIN_PAIRS_FILE, TUNE_PAIRS_FILE
from containers.data.filters.prompt_words import Prompts, Turns
from containers.data.filters.similar_prompts import similar_prompts
from containers.data.rows import prompt_identity


def seen_prompts(
    pairs: Path,
    frozen: Path,
    *,
    overlap: float | None,
    with_policy: bool,
    with_tune: bool,
    others: Sequence[Path] = (),
) -> frozenset[str]:
    """Identities of the prompts that a model has seen.

    Args:
        pairs: the artifact of filter_dataset or filter_prompts that it was trained on.
        frozen: file of frozen pairs or prompts.
        overlap: `filter_dataset.similar_prompt_overlap`: frozen prompts that are like a training prompt count as seen,
            by the rule that keeps such prompts on one side of the split; None: the run does not keep to it.
        with_policy: the prompts that train the policy count too.
        with_tune: the pairs that chose its checkpoint count too; not where the frozen pairs are the same pairs.
        others: further files of rows that it, or the model that it starts from, was trained on.
    """
    has_pairs = (pairs / TRAIN_PAIRS_FILE).exists()
    files = [*([TRAIN_PAIRS_FILE] if has_pairs else []), *([POLICY_TRAIN_PROMPTS_FILE] if with_policy else [])]
    files += [TUNE_PAIRS_FILE] if with_tune else []
    paths = [*(pairs / file for file in files), *others]
    trained = {identity: turns for path in paths for identity, turns in _prompts(path).items()}
    if overlap is None:
        return frozenset(trained)
    held_out = _prompts(frozen)
    groups = similar_prompts(Prompts({**held_out, **trained}), overlap=overlap)
    names = {groups.of(identity) for identity in trained}
    return frozenset(trained) | {identity for identity in held_out if groups.of(identity) in names}


def count_prompts(path: Path) -> int:
    """Number of different prompts in a file of pairs or prompts."""
    return len(_prompts(path))


def _prompts(path: Path) -> dict[str, Turns]:
    found: dict[str, Turns] = {}
    for batch in pq.ParquetFile(path).iter_batches(columns=["prompt"]):
        found |= {prompt_identity(turns): turns for turns in batch.column("prompt").to_pylist()}
    return found
