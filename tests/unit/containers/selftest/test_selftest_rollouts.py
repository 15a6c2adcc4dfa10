"""The self-test's probe of the rollout engine passes engines that follow the policy, and fails one that does not."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel

from containers.contracts.configs.parts.rewards import RegexTerm
from containers.contracts.configs.selftest import SelftestRequest
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.harness.errors import StageError
from containers.packing.logps import causal_of
from containers.rollouts.engines import Rollouts
from containers.selftest import policy_step, rollouts, shape
from containers.selftest.probe import Bench, Findings, NotHereError
from tests.unit.containers.selftest.test_selftest_probes import QWEN
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages


def bench(folder: Path, model: dict[str, Any] = QWEN, **changes: Any) -> Bench:
    rule = RegexTerm.model_validate({"kind": "outcome", "pattern": "[02468]$"})
    config = TrainPolicyConfig(
        num_generations=4, max_prompt_length=24, max_completion_length=24, rewards=(rule,), evidence=None
    ).model_copy(update=changes)
    request = SelftestRequest(probes=("rollouts",), model=model)
    return Bench(make_context(folder, StageName.TRAIN_POLICY, config, {}), request)


@pytest.mark.parametrize("engine", ["shared_prompts", "continuous_batching", "transformers"])
def test_an_engine_that_follows_the_policy_passes_with_its_figures(engine: str, tmp_path: Path) -> None:
    found = Findings()
    rollouts.probe(bench(tmp_path, rollout_engine=engine), found)
    figures = {(value.name, value.of): value.value for value in found.values}
    assert figures["moved", ""] > 0.1
    assert figures["apart", "moved"] < 1e-3 and figures["apart", "moved back"] < 1e-3
    assert figures["rate", ""] > 1 and figures["start", engine] > 0
    assert figures.get(("engine_token", ""), 0) > 0 or "not to be told from" in found.notes[0]


def test_an_engine_that_never_gets_the_adapters_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def without_adapters(policy: Any) -> Iterator[None]:
        causal, own = causal_of(policy), causal_of(policy).generate
        assert isinstance(policy, PeftModel)

        def generate(**settings: Any) -> Any:
            with policy.disable_adapter():
                return own(**settings)

        causal.generate = generate
        try:
            yield
        finally:
            del causal.generate

    monkeypatch.setattr(rollouts, "start_rollouts", lambda *_: Rollouts(without_adapters))
    with pytest.raises(StageError, match="nats a token from the policy when its weights are moved"):
        rollouts.probe(bench(tmp_path), Findings())


def test_one_completion_a_prompt_is_written_too(tmp_path: Path) -> None:
    """As PPO's policies write; its critic is left out by the orchestrator."""
    found = Findings()
    rollouts.probe(bench(tmp_path, num_generations=1), found)
    assert {value.name for value in found.values} >= {"start", "moved", "apart", "rate"}
    with pytest.raises(NotHereError, match="critic"):
        rollouts.probe(bench(tmp_path, algorithm="ppo", num_generations=1), Findings())


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_quantized_policies_write_and_learn_from_files_of_the_shape(quantization: str, tmp_path: Path) -> None:
    found, steps = Findings(), Findings()
    rollouts.probe(bench(tmp_path / "a", quantization=quantization), found)
    figures = {(value.name, value.of): value.value for value in found.values}
    assert figures["moved", ""] > 0.1 and figures["apart", "moved"] < 1e-3
    policy_step.probe(bench(tmp_path / "b", quantization=quantization), steps)
    assert {value.name for value in steps.values} >= {"generated_token", "step", "peak", "largest_pack"}


def test_the_time_in_which_an_engine_wakes_is_not_taken_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = [True]

    @contextmanager
    def sleeping(policy: Any) -> Iterator[None]:
        causal, own = causal_of(policy), causal_of(policy).generate

        def generate(**settings: Any) -> Any:
            if asleep[0]:
                time.sleep(0.5)
            asleep[0] = False
            time.sleep(0.01 * settings["generation_config"].max_new_tokens)
            return own(**settings)

        causal.generate = generate
        try:
            yield
        finally:
            asleep[0] = True
            del causal.generate

    monkeypatch.setattr(rollouts, "start_rollouts", lambda *_: Rollouts(sleeping))
    found = Findings()
    rollouts.probe(bench(tmp_path), found)
    token = next(value.value for value in found.values if value.name == "engine_token")
    assert 0.009 < token < 0.2, "ten milliseconds, and what a tiny model takes; with the waking taken off, nothing"


def test_a_disk_without_room_for_the_model_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shape.shutil, "disk_usage", lambda _: full)
    with pytest.raises(NotHereError, match=r"has 0.977 KiB left, and the model in files takes \d"):
        rollouts.probe(bench(tmp_path, quantization="nf4"), Findings())
    assert not [*tmp_path.rglob("*.safetensors")]


def test_vllm_that_is_not_there_is_no_failure_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "find_spec", lambda name: None)
    with pytest.raises(NotHereError, match="the profile has no GPUs"):
        rollouts.probe(bench(tmp_path, rollout_engine="vllm"), Findings())
