"""A judge behind an address must be asked about the pairs in the very order in which the stage reads its answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.names import SAMPLED_FILE, StageName
from containers.contracts.records import PipelineRecord, StageRecord
from tasks.arms.load import Arm
from tasks.arms.pairs import pairs_artifact, started_alike
from tasks.arms.results import ArmResult
from tasks.config.loading import LoadedConfig
from tests.unit.factories.run_config import run_config


def result(
    folder: Path, name: str, seed: int, texts: Sequence[str], *, start: Sequence[str] = ("s0", "s1")
) -> ArmResult:
    made = folder / f"{name}-{seed}"
    made.mkdir()
    rows: list[dict[str, Any]] = [
        {"prompt": [{"role": "user", "content": f"q{place}"}], "policy": text, "reference": old}
        for place, (text, old) in enumerate(zip(texts, start, strict=True))
    ]
    pq.write_table(pa.Table.from_pylist(rows), made / SAMPLED_FILE)
    records = tuple(
        StageRecord(stage=stage, status="ran", key="a" * 64, path=str(made), digest="sha256:1")
        for stage in (StageName.SAMPLE_COMPLETIONS, StageName.EVALUATE_POLICY)
    )
    config = run_config(f"{name}-{seed}", output_dir=made / "out", store_dir=folder / "store")
    record = PipelineRecord(run_id="1", run_name=name, started_at="", command="", config_yaml="", stages=records)
    return ArmResult(Arm(name, seed, name, {}, LoadedConfig(config, folder / "run.yaml")), record)


@pytest.fixture
def results(tmp_path: Path) -> list[ArmResult]:
    return [
        result(tmp_path, "dpo", 0, ["d0", "d1"]),
        result(tmp_path, "grpo", 0, ["g0", "g1"]),
        result(tmp_path, "grpo", 1, ["G0", "G1"]),
    ]


def pairs(results: list[ArmResult], folder: Path, *, with_start: bool) -> list[tuple[str, str]]:
    made = pairs_artifact(results, folder, with_start=with_start)
    return [(row["policy"], row["reference"]) for row in pq.read_table(Path(made.path) / SAMPLED_FILE).to_pylist()]


def test_pairs_are_in_the_order_of_the_stage(results: list[ArmResult], tmp_path: Path) -> None:
    assert pairs(results, tmp_path / "pairs", with_start=True) == [
        *[("d0", "s0"), ("d1", "s1")],
        *[("g0", "s0"), ("g1", "s1")],
        *[("G0", "s0"), ("G1", "s1")],
        *[("d0", "g0"), ("d1", "g1")],
    ]
    assert pairs(results, tmp_path / "pairs", with_start=False) == [("d0", "g0"), ("d1", "g1")]


def test_the_digest_is_that_of_the_texts(results: list[ArmResult], tmp_path: Path) -> None:
    first = pairs_artifact(results, tmp_path / "one", with_start=True)
    assert pairs_artifact(results, tmp_path / "two", with_start=True).digest == first.digest
    changed = [*results[:2], result(tmp_path, "grpo", 2, ["G0", "other"])]
    assert pairs_artifact(changed, tmp_path / "three", with_start=True).digest != first.digest


def test_start_models_are_one_only_if_they_write_the_same(results: list[ArmResult], tmp_path: Path) -> None:
    assert started_alike(results)
    assert not started_alike([*results, result(tmp_path, "rloo", 0, ["r0", "r1"], start=["s0", "else"])])
