"""Writing a token keeps a GPU waiting for launches, so their number is its speed: it is counted, and held exactly.

Counted on a CPU are the operations that torch dispatches, without views: those of a GPU are about as many. `L` stands
for the layers; the rest is the head, the draw and transformers' loop. What stands here changes with an engine, or with
torch, transformers and PEFT: then look which it was, and count again.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from peft import get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3ForCausalLM
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

from containers.rollouts.continuous_batching import batching
from containers.rollouts.shared_prompts import sharing
from tests.unit.containers.rollouts.test_group_generation import adapters, generated, rows
from tests.unit.factories.tiny_policy import tiny_config, tiny_tokenizer

pytestmark = pytest.mark.stages

NO_END = 300
ENGINES: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "generate": lambda model: nullcontext(),
    "shared_prompts": sharing,
    "continuous_batching": batching,
}


class _Launches(TorchDispatchMode):
    """Counts operations that compute or copy; a view, or memory that is not filled, starts no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not (func.is_view or name.startswith("empty") or name in ("detach", "lift_fresh", "_unsafe_view")):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def made(layers: int, *, lora: bool) -> Any:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(tiny_config(tiny_tokenizer(), num_hidden_layers=layers)).eval()
    return get_peft_model(model, adapters()) if lora else model


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operations of each generation that `per_token` asks for, in whatever thread it computes."""
    found: list[int] = []
    loop = ContinuousBatchingManager._run_generation_loop

    def counted(manager: Any) -> None:
        with _Launches() as seen:
            loop(manager)
        found.append(seen.counts.total())

    monkeypatch.setattr(ContinuousBatchingManager, "_run_generation_loop", counted)
    return found


def per_token(layers: int, *, engine: str, lora: bool, launches: list[int]) -> int:
    """Operations that each further token costs, for two prompts of four completions."""
    model, batch = made(layers, lora=lora).eval(), rows([(7, 4), (12, 4)])
    settings = {"eos_token_id": NO_END, "do_sample": True, "top_k": 0, "top_p": 1.0}
    launches.clear()
    with ENGINES[engine](model):
        for num_tokens in (4, 12):
            with _Launches() as here:
                generated(model, batch, max_new_tokens=num_tokens, **settings)
            if engine != "continuous_batching":
                launches.append(here.counts.total())
    first, second = launches
    more, rest = divmod(second - first, 12 - 4)
    assert not rest, "tokens cost unlike numbers of operations"
    return more


@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
@pytest.mark.parametrize(
    ("engine", "a_layer", "beside"),
    [("generate", 51, 57), ("shared_prompts", 60, 43), ("continuous_batching", 52, 51)],
)
def test_a_token_costs_so_many_operations(
    launches: list[int], engine: str, a_layer: int, beside: int, lora: bool
) -> None:
    """Adapters on seven projections cost four more each: two products, a factor and a sum."""
    found = {layers: per_token(layers, engine=engine, lora=lora, launches=launches) for layers in (2, 3, 5)}
    assert found == {layers: (a_layer + 28 * lora) * layers + beside for layers in found}
