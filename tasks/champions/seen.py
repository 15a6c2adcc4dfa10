"""The prompts that a version was trained on, and the prompts that compare champions and are like one of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.names import POLICY_TRAIN_PROMPTS_FILE, TRAIN_PAIRS_FILE, TUNE_PAIRS_FILE
from containers.contracts.registries import BENCHMARKS
from containers.data.filters.prompt_words import Prompts, Turns
from containers.data.filters.similar_prompts import prompts_for_split
from containers.data.rows import prompt_identity
from tasks.pipeline.inputs import suite_inputs


def seen_prompts(
    pairs: Path,
    frozen: Path,
    *,
    overlap: float,
    with_policy: bool,
    with_tune: bool,
    others: Sequence[Path] = (),
    suites: Sequence[Mapping[str, Turns]] = (),
) -> frozenset[str]:
    """Identities of the prompts that a model has seen, and of the frozen and suites' prompts that are like one of them.

    Prompts are alike by the rule that keeps them on one side of a split, whatever the filter does with its own rows.

    Args:
        pairs: the artifact of filter_dataset or filter_prompts that it was trained on.
        frozen: file of frozen pairs or prompts.
        overlap: `similar_prompt_overlap` of that filter.
        with_policy: the prompts that train the policy count too.
        with_tune: the pairs that chose its checkpoint count too; not where the frozen pairs are the same pairs.
        others: further files of rows that it, or the model that it starts from, was trained on.
        suites: prompts of each suite by their identities; a suite that is added later is known by equal prompts only.
    """
    has_pairs = (pairs / TRAIN_PAIRS_FILE).exists()
    files = [*([TRAIN_PAIRS_FILE] if has_pairs else []), *([POLICY_TRAIN_PROMPTS_FILE] if with_policy else [])]
    files += [TUNE_PAIRS_FILE] if with_tune else []
    paths = [*(pairs / file for file in files), *others]
    trained = {identity: turns for path in paths for identity, turns in _prompts(path).items()}
    # Each set by itself: how many prompts share a run decides whether it is of a template.
    alike = (_like_one_of(trained, prompts, overlap=overlap) for prompts in (_prompts(frozen), *suites))
    return frozenset(trained).union(*alike)


def suite_prompts(suites: Sequence[SuiteFile]) -> list[dict[str, Turns]]:
    """The prompts of each suite by their identities.

    Raises:
        SourceError: a suite's file cannot be had.
        BadDataError: it cannot be read.
    """
    return [
        {item.prompt_id: item.prompt for item in BENCHMARKS[suite.benchmark].read(Path(found.path)).items}
        for suite, found in zip(suites, suite_inputs(suites), strict=True)
    ]


def count_prompts(path: Path) -> int:
    """Number of different prompts in a file of pairs or prompts."""
    return len(_prompts(path))


def _like_one_of(trained: Mapping[str, Turns], prompts: Mapping[str, Turns], *, overlap: float) -> frozenset[str]:
    """Identities of the prompts that are in one group with a training prompt."""
    groups = prompts_for_split(Prompts({**prompts, **trained}), overlap=overlap)
    names = {groups.of(identity) for identity in trained}
    return frozenset(identity for identity in prompts if groups.of(identity) in names)


def _prompts(path: Path) -> dict[str, Turns]:
    found: dict[str, Turns] = {}
    for batch in pq.ParquetFile(path).iter_batches(columns=["prompt"]):
        found |= {prompt_identity(turns): turns for turns in batch.column("prompt").to_pylist()}
    return found
