"""The product's own training step at full width, on tensors without storage, computes and keeps what the plan says."""

from pathlib import Path

import pytest

from benchmarks.gpu.rehearsal import two_blocks

pytestmark = [pytest.mark.stages, pytest.mark.slow, pytest.mark.shared_data]


@pytest.mark.parametrize(
    ("name", "checkpointing"), [("Qwen__Qwen3-8B", False), ("Qwen__Qwen3-8B", True), ("Qwen__Qwen3-14B", False)]
)
def test_operations_and_kept_values_of_two_blocks_are_those_of_the_plan(
    shared_data: Path, name: str, checkpointing: bool
) -> None:
    found, planned = two_blocks(shared_data / "model_configs" / f"{name}.json", checkpointing=checkpointing)
    assert planned.operations == pytest.approx(found.operations, rel=0.05), "operations of matrix products"
    assert planned.kept_bytes == pytest.approx(found.kept_bytes, rel=0.15), "values kept for the backward"
