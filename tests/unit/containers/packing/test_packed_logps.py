"""Packed completions have the log-probabilities that TRL computes in padded rows, and no token is computed twice."""

import random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from containers.packing import logps as packed_logps_module
from containers.packing.attention import packed
from containers.packing.logps import add_logps, causal_of, completion_packs, row_logps
from containers.packing.trees import Tree
from tests.unit.factories.tiny_policy import tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

TEMPERATURE = 0.7
K = 4
PAD = 0


def rows(*, seed: int = 0, num_prompts: int = 4) -> tuple[list[list[int]], list[list[int]]]:
    """K completions of 1 to 20 tokens for each prompt of 3 to 40; those of the second prompt begin alike."""
    rng = random.Random(seed)  # noqa: S311

    def ids(count: int) -> list[int]:
        return [rng.randrange(5, 250) for _ in range(count)]

    prompts = [prompt for prompt in (ids(rng.randint(3, 40)) for _ in range(num_prompts)) for _ in range(K)]
    completions = [ids(rng.randint(1, 20)) for _ in prompts]
    start = ids(5)
    completions[K : 2 * K] = [start + completion for completion in completions[K : 2 * K]]
    return prompts, completions


def padded(prompts: list[list[int]], completions: list[list[int]]) -> tuple[Tensor, Tensor, int]:
    """As RLOOTrainer makes them: prompts padded on the left, completions on the right; ids, mask, completion places."""
    left, right = max(map(len, prompts)), max(map(len, completions))
    ids, mask = [], []
    for prompt, completion in zip(prompts, completions, strict=True):
        before, after = left - len(prompt), right - len(completion)
        ids.append([PAD] * before + prompt + completion + [PAD] * after)
        mask.append([0] * before + [1] * (len(prompt) + len(completion)) + [0] * after)
    return torch.tensor(ids), torch.tensor(mask), right


def model(*, lora: bool) -> Any:
    plain = tiny_causal_model(tiny_tokenizer())
    if not lora:
        return plain
    adapters = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    torch.manual_seed(1)
    return get_peft_model(plain, adapters)


@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
def test_log_probabilities_and_entropies_are_trls(lora: bool) -> None:
    prompts, completions = rows()
    ids, mask, places = padded(prompts, completions)
    asked = model(lora=lora)
    add_fused_lm_head(causal_of(asked), temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    add_logps(causal_of(asked), temperature=TEMPERATURE)
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-places] = -100
    with torch.no_grad():
        stock = asked(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        with packed(causal_of(asked)):
            for pack in completion_packs(prompts, completions, max_tokens=150):
                logps, entropies, _ = asked(pack=pack)
                for row, own, entropy in zip(
                    pack.rows, pack.by_completion(logps), pack.by_completion(entropies), strict=True
                ):
                    length = len(completions[row])
                    wanted = slice(-places, length - places or None)
                    torch.testing.assert_close(own, stock.log_probs[row, wanted], rtol=0, atol=1e-5)
                    torch.testing.assert_close(entropy, stock.entropy[row, wanted], rtol=0, atol=1e-5)
    assert float(stock.log_probs.min()) < -1.0


def test_a_model_that_knows_packs_still_takes_rows() -> None:
    asked, knowing = model(lora=False), model(lora=False)
    add_logps(knowing, temperature=TEMPERATURE)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(asked(input_ids=ids).logits, knowing(input_ids=ids).logits)


def test_a_prompt_is_computed_once_for_its_completions_and_so_is_what_they_begin_with() -> None:
    prompts, completions = rows()
    packs = completion_packs(prompts, completions, max_tokens=10_000)
    assert len(packs) == 1
    alike = [len(prompts[start]) for start in range(0, len(prompts), K)]
    # The second prompt's completions share their first five tokens; others may share a token by chance.
    most = sum(alike) + sum(map(len, completions)) - (K - 1) * 5
    assert most - 3 <= packs[0].input_ids.numel() <= most
    assert sorted(packs[0].rows) == list(range(len(prompts)))


def test_completions_of_one_prompt_are_cut_where_the_budget_ends_and_a_longer_one_is_alone() -> None:
    prompt = [7] * 20
    completions = [[number] * 10 for number in (1, 2, 3)] + [[4] * 50]
    packs = completion_packs([prompt] * 4, completions, max_tokens=40)
    assert sorted((sorted(pack.rows), pack.input_ids.numel()) for pack in packs) == [([0, 1], 40), ([2], 30), ([3], 70)]


def test_the_completions_of_a_pair_are_never_in_two_packs_and_pairs_of_one_prompt_share_it() -> None:
    prompt = [7] * 20
    prompts = [prompt] * 6 + [[8] * 5] * 2
    completions = [[number] * 8 for number in range(6)] + [[9] * 60, [10]]
    packs = completion_packs(prompts, completions, max_tokens=52, num_together=2)
    # Two pairs fit with their prompt; the last one is longer than the budget.
    assert sorted((sorted(pack.rows), pack.input_ids.numel()) for pack in packs) == [
        ([0, 1, 2, 3], 52),
        ([4, 5], 36),
        ([6, 7], 66),
    ]
    apart = completion_packs(prompts, completions, max_tokens=28, num_together=1)
    assert all(len(pack.rows) == 1 for pack in apart)


def test_prompts_that_are_not_alike_are_computed_each_by_itself() -> None:
    (pack,) = completion_packs([[1, 2], [1, 3], [1, 2]], [[4], [5], [6, 7]], max_tokens=100)
    assert pack.input_ids.numel() == (2 + 1 + 2) + (2 + 1)
    assert sorted(len(tree.branches) for tree in pack.trees) == [1, 2]


@pytest.mark.parametrize("is_trained", [False, True], ids=["frozen head", "trained head"])
def test_the_logits_of_a_frozen_head_are_computed_once_on_a_cpu(
    is_trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    real = packed_logps_module.FrozenHeadLogps

    class Frozen(real):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
            used.append("frozen")
            return real.forward(ctx, *arguments)

    monkeypatch.setattr(packed_logps_module, "FrozenHeadLogps", Frozen)
    asked = model(lora=True)
    causal_of(asked).get_output_embeddings().weight.requires_grad_(is_trained)
    add_logps(causal_of(asked), temperature=TEMPERATURE)
    prompts, completions = rows()
    (pack,) = completion_packs(prompts[:K], completions[:K], max_tokens=1000)
    with packed(causal_of(asked)):
        asked(pack=pack)
    assert used == ([] if is_trained else ["frozen"])


def test_a_frozen_head_gives_the_values_and_the_gradient_of_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_logps_module, "frozen_head_tile_tokens", lambda vocabulary: 3)
    torch.manual_seed(0)
    hidden, weight = torch.randn(8, 6, requires_grad=True), torch.randn(11, 6)
    targets, towards = torch.randint(0, 11, (8,)), torch.randn(8)
    logps, entropies = packed_logps_module.FrozenHeadLogps.apply(hidden, weight, targets, TEMPERATURE)
    wanted = (hidden @ weight.T / TEMPERATURE).log_softmax(-1)
    torch.testing.assert_close(logps, wanted.gather(1, targets[:, None]).squeeze(1))
    torch.testing.assert_close(entropies, -(wanted.exp() * wanted).sum(-1))
    (ours,) = torch.autograd.grad((logps * towards).sum(), hidden)
    (theirs,) = torch.autograd.grad((wanted.gather(1, targets[:, None]).squeeze(1) * towards).sum(), hidden)
    torch.testing.assert_close(ours, theirs)


def test_one_completion_alone_has_the_log_probabilities_of_the_models_own_logits() -> None:
    asked, prompt, completion = model(lora=False), [5, 6, 7], [8, 9]
    with torch.no_grad():
        logits = asked(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
        wanted = [logits[place].log_softmax(-1)[token] for place, token in zip((2, 3), completion, strict=True)]
        torch.testing.assert_close(row_logps(asked, prompt, completion), torch.stack(wanted))


def test_equal_trees_are_one_key_of_what_a_kernel_keeps_of_them() -> None:
    assert {Tree(start=0, trunk=2, branches=(1, 3)): 1}[Tree(start=0, trunk=2, branches=(1, 3))] == 1
