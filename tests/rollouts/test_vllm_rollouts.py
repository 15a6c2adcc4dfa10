"""vLLM itself, on a CPU: it writes what the policy would with its present adapters, and leaves nothing behind."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from containers.contracts.names import StageName
from containers.harness.errors import StageError
from containers.models.loading import apply_lora
from containers.packing.logps import causal_of
from containers.rollouts.vllm import VllmEngine, start_vllm
from containers.rollouts.vllm_trial import replays, try_given
from tests.rollouts.vllm_factory import CONFIG, NEW_TOKENS, save_start_model
from tests.unit.containers.rollouts.test_group_generation import PAD, rows
from tests.unit.factories.spec_factory import make_context

pytestmark = [pytest.mark.stages, pytest.mark.vllm]

LENGTHS = (5, 40, 90)
NO_END = 500


@dataclass
class Started:
    """vLLM with a start model, and the policy that is trained from it."""

    engine: VllmEngine
    policy: Any

    def train(self, seed: int) -> None:
        """Some step or other: all adapters, or all weights, are others than before."""
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in self.policy.parameters():
                if weight.requires_grad:
                    weight += 0.1 * torch.randn_like(weight)

    def generated(self, batch: dict[str, Tensor], **more: Any) -> Tensor:
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": PAD, "eos_token_id": NO_END}
        torch.manual_seed(5)
        tokens: Tensor = self.policy.generate(**batch, generation_config=GenerationConfig(**{**settings, **more}))
        return tokens

    def by_vllm(self, batch: dict[str, Tensor], **more: Any) -> Tensor:
        with self.engine.writing(self.policy):
            return self.generated(batch, **more)


@pytest.fixture(scope="module", params=["adapters", "whole"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("vllm")
    start = save_start_model(folder / "start")
    model = AutoModelForCausalLM.from_pretrained(start)
    config = CONFIG if request.param == "adapters" else CONFIG.model_copy(update={"lora": None})
    context = make_context(folder, StageName.TRAIN_POLICY, config, {"start_model": start})
    prompts = [list(range(10, 10 + length)) for length in LENGTHS]
    engine = start_vllm(context, config, model, prompts)
    yield Started(engine, apply_lora(model, config.lora, task_type="CAUSAL_LM"))
    engine.close()


def test_greedy_completions_are_the_policys_after_every_step(started: Started) -> None:
    batch = rows([(length, 2) for length in LENGTHS])
    written = []
    for seed in range(3):
        started.train(seed)
        written.append(started.by_vllm(batch))
        assert torch.equal(written[-1], started.generated(batch))
    assert not torch.equal(written[0], written[1])


def test_a_completion_that_ended_is_filled_up(started: Started) -> None:
    batch = rows([(length, 2) for length in LENGTHS])
    ends = started.generated(batch)[:2, -NEW_TOKENS + 1].unique().tolist()
    written = started.by_vllm(batch, eos_token_id=ends)
    assert written.tolist() == started.generated(batch, eos_token_id=ends).tolist()
    assert (written[:, -1] == PAD).any()


def test_siblings_are_drawn_apart_and_the_same_seed_draws_them_again(started: Started) -> None:
    batch = rows([(length, 4) for length in LENGTHS])
    drawn = [started.by_vllm(batch, do_sample=True, temperature=1.2, top_p=0.95, top_k=0) for _ in range(2)]
    assert torch.equal(*drawn)
    completions = [tuple(row) for row in drawn[0][:, -NEW_TOKENS:].tolist()]
    assert len(set(completions)) == len(completions)


def test_tokens_are_drawn_as_often_as_they_are_likely(started: Started) -> None:
    """The share of each first token is its probability, within five standard errors."""
    siblings, times = 12, 120
    batch = rows([(9, 1)])
    with torch.no_grad():
        wanted = torch.softmax(started.policy(**batch).logits[0, -1].float() / 1.5, dim=-1)
    many = {name: value.expand(siblings, -1) for name, value in batch.items()}
    settings = GenerationConfig(
        max_new_tokens=1, eos_token_id=NO_END, pad_token_id=PAD, do_sample=True, temperature=1.5, top_k=0, top_p=1.0
    )
    torch.manual_seed(0)
    with started.engine.writing(started.policy):
        drawn = [started.policy.generate(**many, generation_config=settings)[:, -1] for _ in range(times)]
    count = siblings * times
    shares = torch.bincount(torch.cat(drawn), minlength=len(wanted)) / count
    errors = (wanted * (1 - wanted) / count).sqrt()
    likely = wanted > 20 / count
    assert likely.sum() > 5
    assert ((shares - wanted).abs() < 5 * errors)[likely].all()


def test_the_policys_own_weights_stay_as_they_are(started: Started) -> None:
    before = {name: weight.clone() for name, weight in started.policy.state_dict().items()}
    started.policy.train()
    started.by_vllm(rows([(9, 2)]))
    assert started.policy.training and "generate" not in vars(causal_of(started.policy))
    assert all(torch.equal(weight, before[name]) for name, weight in started.policy.state_dict().items())


def test_weights_that_arrive_are_the_policys_and_those_that_do_not_end_the_stage(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [list(range(10, 10 + length)) for length in LENGTHS]
    before = {name: weight.clone() for name, weight in started.policy.state_dict().items()}
    assert try_given(started.engine, started.policy, prompts=prompts, room=110) == 1e-5
    assert all(torch.equal(weight, before[name]) for name, weight in started.policy.state_dict().items())
    monkeypatch.setattr(VllmEngine, "give", lambda *_: None)
    started.train(seed=9)  # what vLLM still has is another policy's
    with pytest.raises(StageError, match="it does not use them as the policy does"):
        try_given(started.engine, started.policy, prompts=prompts, room=110)


def test_it_says_with_which_probability_it_drew_at_any_temperature(started: Started) -> None:
    batch = rows([(length, 2) for length in LENGTHS])
    tokens = started.by_vllm(batch, do_sample=True, temperature=0.6, top_p=1.0, top_k=0)
    own = []
    with torch.no_grad():
        for ids, mask, length in zip(tokens, batch["attention_mask"], batch["attention_mask"].sum(dim=1), strict=True):
            row = ids[len(mask) - int(length) :][None]
            scores = (started.policy(input_ids=row).logits[0, int(length) - 1 : -1].float() / 0.6).log_softmax(-1)
            own.append(scores.gather(1, row[0, int(length) :, None])[:, 0].tolist())
    for said, wanted in zip(started.engine.newest, own, strict=True):
        assert said == pytest.approx(wanted[: len(said)], abs=1e-3)


def test_the_same_seeds_draw_the_same_completions_again(started: Started) -> None:
    settings = GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=True, temperature=1.0, top_p=1.0, eos_token_id=NO_END
    )
    assert replays(started.engine, [list(range(10, 20))], settings)


def test_one_that_sleeps_wakes_for_each_batch_and_writes_with_the_newest_weights(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, vLLM keeps its memory; the order of what it is told, and what it then writes, are as on a GPU."""
    told: list[tuple[str, Any]] = []
    llm = started.engine.llm

    def noted(name: str, call: Any, *given: Any, **named: Any) -> Any:
        told.append((name, given[0] if given else named["level"]))
        return call(*given, **named)

    for name in ("sleep", "wake_up", "collective_rpc"):
        monkeypatch.setattr(llm, name, partial(noted, name, getattr(llm, name)))
    monkeypatch.setattr(started.engine, "sleeps", True)
    adapts = isinstance(started.policy, PeftModel)
    batch = rows([(length, 2) for length in LENGTHS])
    for seed in (20, 21):
        started.train(seed)
        assert torch.equal(started.by_vllm(batch), started.generated(batch))
    given = [] if adapts else [("collective_rpc", "reload_weights")]
    awake = [("wake_up", ["weights"]), *given, ("wake_up", ["kv_cache"])]
    assert told == [*given, ("sleep", 1 if adapts else 2), *awake, ("sleep", 1 if adapts else 2)]
    monkeypatch.setattr(started.engine, "sleeps", False)
    assert torch.equal(started.by_vllm(batch), started.generated(batch))
