"""Continuous batching writes the completions that transformers' generate writes, and loses none without a word."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.harness.errors import BadConfigError, StageError
from containers.rollouts import continuous_batching as batched_generation
from containers.rollouts.continuous_batching import (
    batching,
    num_pages,
    why_not_batched,
)
from containers.rollouts.engines import start_rollouts
from containers.token_budgets import PAGE_TOKENS
from tests.unit.containers.algorithms.test_policy_packing import model, prompts
from tests.unit.containers.rollouts.test_group_generation import LENGTHS, NEW_TOKENS, PAD, generated, policy, rows
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

NO_END = 300


def batched(found: Any, batch: dict[str, torch.Tensor], **more: Any) -> torch.Tensor:
    with batching(found):
        return generated(found, batch, **more)


@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
@pytest.mark.parametrize(
    "counts",
    [
        [(length, 4) for length in LENGTHS],
        [(1, 4), (1, 4)],
        [(500, 4), (20, 4)],
        [(30, 1), (12, 4), (50, 3)],
        [(PAGE_TOKENS, 2), (PAGE_TOKENS + 1, 2), (PAGE_TOKENS - 1, 2)],
    ],
    ids=["usual", "of one token", "long", "with unlike siblings", "of a page, more and less"],
)
def test_greedy_completions_are_those_of_generate(lora: bool, counts: list[tuple[int, int]]) -> None:
    found = policy(lora=lora)
    batch = rows(counts)
    assert torch.equal(batched(found, batch, eos_token_id=NO_END), generated(found, batch, eos_token_id=NO_END))


def test_a_completion_that_ended_is_filled_up_as_generate_does() -> None:
    found, batch = policy(), rows([(length, 2) for length in LENGTHS])
    ends = generated(found, batch)[:, -NEW_TOKENS + 3].unique().tolist()
    written = batched(found, batch, eos_token_id=ends)
    assert torch.equal(written, generated(found, batch, eos_token_id=ends))
    assert (written[:, -1] == PAD).any()


def test_siblings_are_drawn_apart_and_the_same_seed_draws_them_again() -> None:
    found, batch = policy(), rows([(length, 4) for length in LENGTHS])
    drawn = [batched(found, batch, eos_token_id=NO_END, do_sample=True) for _ in range(2)]
    assert torch.equal(*drawn)
    first_tokens = drawn[0][:, -NEW_TOKENS].view(-1, 4)
    assert all(len(set(own.tolist())) > 1 for own in first_tokens)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """Siblings of one prompt: the share of each first token is its probability, within five standard errors."""
    found, siblings, times = policy(), 250, 12
    batch = rows([(9, 1)])
    with torch.no_grad():
        wanted = torch.softmax(found(**batch).logits[0, -1] / 1.5, dim=-1)
    many = {name: value.expand(siblings, -1) for name, value in batch.items()}
    settings = GenerationConfig(
        max_new_tokens=1, eos_token_id=NO_END, pad_token_id=PAD, do_sample=True, temperature=1.5, top_k=0, top_p=1.0
    )
    torch.manual_seed(0)
    with batching(found):
        drawn = [found.generate(**many, generation_config=settings)[:, -1] for _ in range(times)]
    count = siblings * times
    shares = torch.bincount(torch.cat(drawn), minlength=len(wanted)) / count
    errors = (wanted * (1 - wanted) / count).sqrt()
    likely = wanted > 20 / count
    assert likely.sum() > 5
    assert ((shares - wanted).abs() < 5 * errors)[likely].all()


def test_a_prompt_is_computed_once_for_all_of_its_completions() -> None:
    lengths = (7, 40, 130)
    found, batch = policy(), rows([(length, 4) for length in lengths])
    computed: list[int] = []
    found.get_input_embeddings().register_forward_hook(lambda _, given, __: computed.append(given[0].numel()))
    batched(found, batch, eos_token_id=NO_END, do_sample=True)
    # The prompt's last token and all of a completion's but its last are each completion's own.
    assert sum(computed) == sum(length - 1 for length in lengths) + 4 * len(lengths) * NEW_TOKENS


def test_the_model_is_as_before_afterwards() -> None:
    found = policy().train()
    weights = {name: weight.clone() for name, weight in found.state_dict().items()}
    attention = found.config._attn_implementation
    batched(found, rows([(9, 2)]), eos_token_id=NO_END)
    assert found.training and found.config._attn_implementation == attention and "generate" not in vars(found)
    assert all(torch.equal(weight, weights[name]) for name, weight in found.state_dict().items())


def test_what_a_forward_raises_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = policy()

    def broken(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(found.model.layers[0], "forward", broken)
    with pytest.raises(torch.OutOfMemoryError):
        batched(found, rows([(9, 2)]))


def test_a_completion_that_never_comes_back_ends_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL moves the completions behind it up to other prompts."""
    get_result, lost = ContinuousBatchingManager.get_result, []

    def loses_one(manager: Any, *arguments: Any, **named: Any) -> Any:
        result = get_result(manager, *arguments, **named)
        if result is not None and not lost:
            lost.append(result)
            manager.stop(block=True)
            return None
        return result

    monkeypatch.setattr(ContinuousBatchingManager, "get_result", loses_one)
    with pytest.raises(StageError, match=r"lost \d of 4 completions .*rollout_engine"):
        batched(policy(), rows([(9, 2), (5, 2)]), eos_token_id=NO_END)


def test_as_many_pages_are_kept_as_completions_need() -> None:
    assert num_pages([300], siblings=4, new_tokens=100) == 1 + 1 + 4 * 2
    assert num_pages([10, 10], siblings=2, new_tokens=10) == 2 * (1 + 2 * 2)


@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral"])
def test_these_models_can_be_batched(family: str) -> None:
    assert why_not_batched(model(family, {}), prompts(), max_length=100) == ""


def test_a_model_that_is_batched_wrongly_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found, written = model("qwen3", {}), batched_generation.written

    def off(*arguments: Any, **named: Any) -> Any:
        one = written(*arguments, **named)
        return batched_generation.Written(one.tokens, [[value - 0.01 for value in own] for own in one.logprobs])

    monkeypatch.setattr(batched_generation, "written", off)
    assert "0.01 apart" in why_not_batched(found, prompts(), max_length=100)


def test_the_log_says_whether_completions_are_batched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainPolicyConfig(max_prompt_length=90, max_completion_length=10, rollout_engine="continuous_batching")
    inputs = {"start_model": save_causal_model(tmp_path / "start")}

    def logged(name: str) -> tuple[Any, str]:
        (tmp_path / name).mkdir()
        context = make_context(tmp_path / name, StageName.TRAIN_POLICY, config, inputs)
        chosen = start_rollouts(context, config, model("qwen3", {}), prompts())
        return chosen.writing, "".join(path.read_text() for path in (tmp_path / name).rglob("events.jsonl"))

    writing, text = logged("can")
    assert writing is batching and "by transformers' continuous batching" in text
    monkeypatch.setattr("containers.rollouts.continuous_batching.why_not_batched", lambda *_, **__: "it is odd")
    writing, text = logged("cannot")
    assert writing is not batching and "without continuous batching: it is odd" in text


def test_vllm_that_is_not_installed_is_said_before_the_model_is_used(tmp_path: Path) -> None:
    config = TrainPolicyConfig(max_prompt_length=90, max_completion_length=10, rollout_engine="vllm")
    context = make_context(tmp_path, StageName.TRAIN_POLICY, config, {})
    with pytest.raises(BadConfigError, match=r"vllm, which is not installed here.*--with vllm.*shared_prompts"):
        start_rollouts(context, config, model("qwen3", {}), prompts())
