"""Every figure about a policy rests on these functions; padding or a foreign setting would bend them silently."""

import math
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from containers.models.token_batches import prompt_token_ids
from containers.rollouts.generate import (
    Completion,
    completion_logprobs,
    generate_completions,
    turn_end_ids,
)
from tests.unit.factories.tiny_policy import tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

PROMPTS = [
    [{"role": "user", "content": text}]
    for text in ("Hi", "Which animal does Anna keep?", "What colour is jade, if it has one?", "No", "Tell me more.")
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_causal_model(tokenizer)


def generate(model: Any, tokenizer: Any, prompts: list[list[int]], **changes: Any) -> list[Completion]:
    settings = {"max_new_tokens": 24, "temperature": 1.0, "batch_size": 3, "seed": 5, **changes}
    return generate_completions(model, tokenizer, prompts, **settings)


def plain_logprob(model: Any, item: Completion, *, temperature: float = 1.0) -> float:
    """One unpadded forward, every position normalised, token by token."""
    ids = [*item.prompt_ids, *item.completion_ids]
    with torch.no_grad():
        logprobs = (model(torch.tensor([ids])).logits[0] / temperature).log_softmax(dim=-1)
    return sum(float(logprobs[t - 1, ids[t]]) for t in range(len(item.prompt_ids), len(ids)))


def test_batched_greedy_completions_are_those_of_one_prompt_at_a_time(model: Any, tokenizer: Any) -> None:
    prompts = prompt_token_ids(tokenizer, PROMPTS)
    assert len({len(ids) for ids in prompts}) > 2
    batched = generate(model, tokenizer, prompts, temperature=0.0, batch_size=5)
    single = [generate(model, tokenizer, [ids], temperature=0.0)[0] for ids in prompts]
    assert batched == single
    assert [list(item.prompt_ids) for item in batched] == prompts
    assert len({item.text for item in batched}) > 1


def test_greedy_completions_are_the_most_likely_tokens_of_a_plain_forward(model: Any, tokenizer: Any) -> None:
    prompts = prompt_token_ids(tokenizer, PROMPTS)
    for item in generate(model, tokenizer, prompts, temperature=0.0, batch_size=5):
        ids = list(item.prompt_ids)
        for token in item.completion_ids:
            with torch.no_grad():
                assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_batched_logprobs_are_those_of_a_plain_forward(model: Any, tokenizer: Any, temperature: float) -> None:
    completions = generate(model, tokenizer, prompt_token_ids(tokenizer, PROMPTS))
    assert len({len(item.completion_ids) for item in completions}) > 1
    found = completion_logprobs(
        model, completions, pad_id=tokenizer.pad_token_id, batch_size=3, temperature=temperature
    )
    wanted = [plain_logprob(model, item, temperature=temperature) for item in completions]
    assert found == pytest.approx(wanted, abs=1e-4)
    assert len({round(value, 3) for value in found}) == len(found)


def test_sampling_follows_the_model_and_ignores_its_generation_config(model: Any, tokenizer: Any) -> None:
    """A model from the hub brings top-k and penalties of its own; then what is sampled is not what is measured."""
    prompts = prompt_token_ids(tokenizer, PROMPTS)
    wanted = generate(model, tokenizer, prompts)
    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=True, top_k=1, top_p=0.1, repetition_penalty=5.0, temperature=9.0, eos_token_id=tokenizer.eos_token_id
    )
    try:
        assert generate(model, tokenizer, prompts) == wanted
        assert model.generation_config.top_k == 1
    finally:
        model.generation_config = own
    prompt = prompts[0]
    first = [
        item.completion_ids[0] for item in generate(model, tokenizer, [prompt] * 2000, max_new_tokens=1, batch_size=500)
    ]
    with torch.no_grad():
        probabilities = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    top = int(probabilities.argmax())
    expected = float(probabilities[top])
    error = math.sqrt(expected * (1 - expected) / len(first))
    assert abs(first.count(top) / len(first) - expected) < 4 * error
    assert len(set(first)) > 20


def test_the_same_seed_repeats_another_does_not_and_the_global_random_state_stays(model: Any, tokenizer: Any) -> None:
    prompts = prompt_token_ids(tokenizer, PROMPTS)
    torch.manual_seed(77)
    state = torch.random.get_rng_state()
    first = generate(model, tokenizer, prompts)
    assert torch.equal(state, torch.random.get_rng_state())
    assert generate(model, tokenizer, prompts) == first
    assert generate(model, tokenizer, prompts, seed=6) != first


def test_a_completion_ends_at_its_first_ending_token_and_says_whether_it_did(tokenizer: Any) -> None:
    model = tiny_causal_model(tokenizer)
    prompts = prompt_token_ids(tokenizer, PROMPTS) * 8
    end = tokenizer.eos_token_id
    with torch.no_grad():
        model.lm_head.weight[end] = model.lm_head.weight.mean(0) * 0
    completions = generate(model, tokenizer, prompts, max_new_tokens=200, batch_size=40)
    ended = [item for item in completions if item.ended]
    assert ended
    for item in completions:
        assert item.ended == (end in item.completion_ids)
        assert item.completion_ids.count(end) == int(item.ended)
        assert len(item.completion_ids) == 200 or item.completion_ids[-1] == end
        assert "<|im_end|>" not in item.text


def test_a_model_that_ends_at_once_gives_empty_text_and_one_token(tokenizer: Any) -> None:
    model = tiny_causal_model(tokenizer)
    prompts = prompt_token_ids(tokenizer, PROMPTS)
    greedy = generate(model, tokenizer, prompts[:1], temperature=0.0)[0]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, greedy.completion_ids[0]]
    item = generate(model, tokenizer, prompts[:1], temperature=0.0)[0]
    assert turn_end_ids(model, tokenizer) == (tokenizer.eos_token_id, greedy.completion_ids[0])
    assert item.ended
    assert item.completion_ids == greedy.completion_ids[:1]
    logprob = completion_logprobs(model, [item], pad_id=tokenizer.pad_token_id, batch_size=1)[0]
    assert logprob == pytest.approx(plain_logprob(model, item), abs=1e-4)


def test_no_prompts_give_no_completions(model: Any, tokenizer: Any) -> None:
    assert prompt_token_ids(tokenizer, []) == []
    assert generate(model, tokenizer, []) == []
    assert completion_logprobs(model, [], pad_id=0, batch_size=2) == []
