"""The self-test's probe of the rollout engine, with vLLM itself on a CPU."""

from pathlib import Path

import pytest

from containers.selftest import rollouts
from containers.selftest.probe import Findings
from tests.rollouts.vllm_factory import children, demand_no_more_children
from tests.unit.containers.selftest.test_selftest_probes import QWEN
from tests.unit.containers.selftest.test_selftest_rollouts import bench

pytestmark = [pytest.mark.stages, pytest.mark.vllm]
# Heads as wide as vLLM's kernels for a CPU want them.
SHAPE = {**QWEN, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512}


def test_vllm_follows_the_policy_of_the_shape_and_is_timed_and_gone(tmp_path: Path) -> None:
    found, before = Findings(), children()
    rollouts.probe(bench(tmp_path, SHAPE, rollout_engine="vllm"), found)
    figures = {(value.name, value.of): value.value for value in found.values}
    assert figures["moved", ""] > 0.1
    assert figures["apart", "moved"] < 0.01 and figures["apart", "moved back"] < 0.01
    assert figures["start", "vllm"] > 1 and figures["rate", ""] > 1
    demand_no_more_children(before)
