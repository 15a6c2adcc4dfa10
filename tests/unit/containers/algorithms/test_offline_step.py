"""A step on given completions: its loss before training, its evaluation, its exchange over ranks, its devices."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from containers.algorithms.likelihood_objective import Likelihood
from containers.algorithms.offline_step import Example, OfflineStep
from containers.algorithms.preference_objective import Preference
from containers.algorithms.reference_logps import computed_reference, with_reference
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES
from containers.packing.logps import add_logps, causal_of
from tests.unit.containers.algorithms.offline_cases import (
    cuts,
    examples,
    lora,
    ours,
    parts_of,
    policy_of,
    without_mismatched,
)
from tests.unit.factories.pretended_gpu import GPU, move_to_gpu, pretended_gpu
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_model(tmp_path_factory.mktemp("start"), scale=0.1, seed=3)


@pytest.mark.parametrize("reference_cut", ["one pack", "5 packs", "padded rows"])
def test_before_training_the_loss_of_a_pair_is_log_2(start: Path, reference_cut: str) -> None:
    rows = without_mismatched(examples(2))
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(start), lora())
    add_logps(causal_of(model), temperature=1.0)
    reference = computed_reference(model, rows, cut=cuts(2)[reference_cut], dtype=torch.float32)
    objective = Preference(PREFERENCE_LOSSES["sigmoid"])
    step = OfflineStep(accelerator=Accelerator(cpu=True), objective=objective, cut=cuts(2)["2 packs"])
    loss, figures = step.update(model, with_reference(rows, reference))
    assert abs(float(loss) - math.log(2)) < 1e-6
    assert abs(figures["margin"]) < 1e-5


def test_an_evaluation_is_one_step_without_gradients(start: Path) -> None:
    rows = examples(2)
    model = policy_of(start)
    add_logps(causal_of(model), temperature=1.0)
    found = []
    for cut in (cuts(2)["one pack"], cuts(2)["5 packs"]):
        reference = computed_reference(model, rows, cut=cut, dtype=torch.float32)
        objective = Preference(parts_of("kto", {}))
        step = OfflineStep(accelerator=Accelerator(cpu=True), objective=objective, cut=cut)
        found.append(step.measure(model.eval(), with_reference(rows, reference)))
    loss, _gradient, figures = ours(start, objective, rows, cut=cut)
    for measured in found:
        assert measured == pytest.approx({"loss": loss, **figures}, rel=1e-4)
    assert all(weight.grad is None for weight in model.parameters())


def test_ranks_exchange_gradients_with_the_last_pack_or_with_each_if_they_divide_the_model(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, cut = without_mismatched(examples(1)), cuts(1)["5 packs"]
    for divides in (False, True):
        model, accelerator = policy_of(start), Accelerator(cpu=True)
        add_logps(causal_of(model), temperature=1.0)
        exchanges, seen = [True], []
        backward = accelerator.backward

        @contextmanager
        def no_sync(model: Any, exchanges: list[bool] = exchanges) -> Iterator[None]:
            exchanges.append(False)
            yield
            exchanges.pop()

        def noted(
            loss: Tensor, seen: list[bool] = seen, exchanges: list[bool] = exchanges, real: Any = backward
        ) -> None:
            seen.append(exchanges[-1])
            real(loss)

        monkeypatch.setattr(accelerator, "no_sync", no_sync)
        monkeypatch.setattr(accelerator, "backward", noted)
        step = OfflineStep(accelerator=accelerator, objective=Likelihood(), cut=cut, divides=divides)
        step.update(model, rows)
        assert len(seen) == 5
        assert seen == ([True] * 5 if divides else [False] * 4 + [True])


@pytest.mark.parametrize("cut", ["2 packs", "padded rows"])
def test_on_a_gpu_no_tensor_of_the_step_stays_on_the_cpu(
    start: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """The GPU is a pretended one, which refuses what mixes devices; its backward knows no change of types."""
    rows, objective = examples(2), Preference(PREFERENCE_LOSSES["kto"].model_copy(update={"sft_weight": 0.5}))
    expected, _gradient, figures = ours(start, objective, rows, cut=cuts(2)[cut])
    model = policy_of(start).eval()
    add_logps(causal_of(model), temperature=1.0)
    accelerator: Any = SimpleNamespace(
        device=GPU, num_processes=1, autocast=nullcontext, unwrap_model=lambda given: given
    )
    with pretended_gpu(monkeypatch):
        move_to_gpu(model)
        reference = computed_reference(model, rows, cut=cuts(2)[cut], dtype=torch.float32)
        step = OfflineStep(accelerator=accelerator, objective=objective, cut=cuts(2)[cut])
        found = step.measure(model, with_reference(rows, reference))
    assert found == pytest.approx({"loss": expected, **figures}, rel=1e-4)


def test_an_example_without_a_prompt_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs a prompt"):
        Example(prompt=[], completions=([1],))
