"""The self-test's probe of the rollout engine passes engines that follow the policy, and fails one that does not."""

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
from containers.selftest import rollouts
from containers.selftest.probe import Bench, Findings, NotHereError
from tests.unit.containers.selftest.test_selftest_probes import QWEN
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages


def bench(folder: Path, shape: dict[str, Any] = QWEN, **changes: Any) -> Bench:
    rule = RegexTerm.model_validate({"kind": "outcome", "pattern": "[02468]$"})
    config = TrainPolicyConfig(
        num_generations=4, max_prompt_length=24, max_completion_length=24, rewards=(rule,), evidence=None
    ).model_copy(update=changes)
    request = SelftestRequest(probes=("rollouts",), model=shape)
    return Bench(make_context(folder, StageName.TRAIN_POLICY, config, {}), request)


@pytest.mark.parametrize("engine", ["shared_prompts", "continuous_batching", "transformers"])
def test_an_engine_that_follows_the_policy_passes_with_its_figures(engine: str, tmp_path: Path) -> None:
    found = Findings()
    rollouts.probe(bench(tmp_path, rollout_engine=engine), found)
    figures = {(value.name, value.of): value.value for value in found.values}
    assert figures["moved", ""] > 0.1
    assert figures["apart", "moved"] < 1e-3 and figures["apart", "moved back"] < 1e-3
    assert figures["rate", ""] > 1 and figures["engine_token", ""] > 0 and figures["start", engine] > 0


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


def test_what_the_probe_cannot_make_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(NotHereError, match="nf4 are made from a model's files"):
        rollouts.probe(bench(tmp_path, quantization="nf4"), Findings())
