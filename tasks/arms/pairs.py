"""Every two policies of a comparison as pairs of answers, for judges that no stage can ask."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from containers.arms.matrix import pairs_of_arms
from containers.arms.records import START
from containers.contracts.names import SAMPLED_FILE, StageName
from containers.contracts.spec import ArtifactRef
from tasks.arms.results import ArmResult

Rows = list[dict[str, Any]]


def started_alike(results: Sequence[ArmResult]) -> bool:
    """Whether the start models of these arms wrote the same, so that they are one in the comparison."""
    return len({tuple(row["reference"] for row in _rows(result)) for result in results}) == 1


def pairs_artifact(results: Sequence[ArmResult], folder: Path, *, with_start: bool) -> ArtifactRef:
    """Write the pairs of all policies in the order in which compare_policies judges them.

    It looks like an artifact of sample_completions; the arm of the pair is its policy, the other one its reference.
    """
    written: dict[tuple[str, int], Rows] = {(one.arm.name, one.arm.seed): _rows(one) for one in results}
    seeds: dict[str, list[int]] = {START: []} if with_start else {}
    for one in results:
        seeds.setdefault(one.arm.name, []).append(one.arm.seed)
    rows = [
        {
            "prompt": own["prompt"],
            "policy": own["policy"],
            "reference": its["reference" if other == START else "policy"],
        }
        for arm, seed, other, other_seed in pairs_of_arms(seeds)
        for own, its in zip(written[arm, seed], _rows_of(written, other, other_seed), strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / SAMPLED_FILE)
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    return ArtifactRef(stage=StageName.SAMPLE_COMPLETIONS, key=digest, path=str(folder), digest=f"sha256:{digest}")


def _rows_of(written: Mapping[tuple[str, int], Rows], arm: str, seed: int) -> Rows:
    return next(iter(written.values())) if arm == START else written[arm, seed]


def _rows(result: ArmResult) -> Rows:
    if result.completions is None:
        raise LookupError(f"{result.arm.name} wrote no completions.")
    path = Path(result.completions.path) / SAMPLED_FILE
    found: Rows = pq.read_table(path, columns=["prompt", "policy", "reference"]).to_pylist()
    return found
