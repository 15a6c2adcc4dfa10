"""Packed completions train the policy that TRL's RLOOTrainer trains, without computing the policy a second time."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import RLOOConfig, RLOOTrainer

from containers.algorithms.rloo_packed import PackedPolicyTrainer
from containers.harness.errors import StageError
from tests.unit.containers.algorithms.test_packed_training import backwards
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

K = 4
PROMPTS = ["Hi", "Which colour is a frog, and which is a crow?", "What is red, round and sweet?", "Why?"]
# TRL's figures, by its own names, that packs must not change.
FIGURES = ("reward", "reward_std", "kl", "entropy", "frac_reward_zero_std", "clip_ratio/region_mean")
# The largest prompt with its completions does not fit: its siblings lie apart.
SMALL = 80
LARGE = 1000


def dealt(trainer: Any, prompt_ids: list[list[int]], *_: Any) -> list[list[int]]:
    """Completions of 1 to 16 letters; some end, some were cut off."""
    found = []
    for place, prompt in enumerate(prompt_ids):
        dice = random.Random(f"{prompt} {place}")  # noqa: S311
        letters = [dice.randrange(60, 90) for _ in range(dice.randrange(1, 16))]
        found.append([*letters, trainer.eos_token_ids[0]] if dice.random() < 0.5 else letters)
    return found


class Stock(RLOOTrainer):  # type: ignore[misc]
    """TRL's trainer, whose completions are dealt."""

    _generate_single_turn = dealt


class Packed(PackedPolicyTrainer):
    """Ours, whose completions are dealt."""

    _generate_single_turn = dealt


def variety(completions: list[Any], **_: Any) -> list[float]:
    """Any reward that differs between completions."""
    return [len(set(reply[0]["content"])) / 4 for reply in completions]


def nothing(completions: list[Any], **_: Any) -> list[float]:
    return [0.5] * len(completions)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_model(tmp_path_factory.mktemp("start"), scale=0.1, seed=3)


def trainer(
    start: Path, folder: Path, *, pack_tokens: int | None, lora: bool, reward: Callable[..., Any] = variety, **more: Any
) -> Any:
    """A trainer whose policy is no longer its reference; TRL's own where `pack_tokens` is None."""
    arguments: dict[str, Any] = {
        "num_generations": K,
        "per_device_train_batch_size": K * len(PROMPTS),
        "gradient_accumulation_steps": 1,
        "max_completion_length": 16,
        "temperature": 0.7,
        "beta": 0.1,
        "learning_rate": 1e-2,
        "max_steps": 2,
        "gradient_checkpointing": False,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "shuffle_dataset": False,
    }
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    ours: dict[str, Any] = {"pack_tokens": pack_tokens, "completion_log": None, "num_logged_completions": 0}
    kind, own = (Stock, {}) if pack_tokens is None else (Packed, ours)
    found = kind(
        model=AutoModelForCausalLM.from_pretrained(start),
        reward_funcs=reward,
        args=RLOOConfig(output_dir=str(folder), **(arguments | more)),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(start),
        peft_config=adapters if lora else None,
        **own,
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in found.model.parameters():
            if weight.requires_grad:
                weight += 0.02 * torch.randn_like(weight)
    return found


def step(found: Any) -> Tensor:
    """The gradient of one step."""
    if found.optimizer is None:
        found.create_optimizer_and_scheduler(2)
    found.current_gradient_accumulation_steps = 1
    torch.manual_seed(1)
    found.model.zero_grad()
    found.model.train()
    found.training_step(found.model, next(iter(found.get_train_dataloader())), None)
    return torch.cat([weight.grad.flatten() for weight in found.model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
@pytest.mark.parametrize("pack_tokens", [LARGE, SMALL], ids=["siblings together", "siblings apart"])
@pytest.mark.parametrize("beta", [0.1, 0.0])
def test_the_gradient_and_the_figures_of_a_step_are_trls(
    start: Path, tmp_path: Path, lora: bool, pack_tokens: int, beta: float
) -> None:
    stock = trainer(start, tmp_path, pack_tokens=None, lora=lora, beta=beta)
    found = trainer(start, tmp_path, pack_tokens=pack_tokens, lora=lora, beta=beta)
    theirs, ours = step(stock), step(found)
    assert theirs.norm() > 1e-3
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    figures = [name for name in FIGURES if stock._metrics["train"][name]]
    assert ("kl" in figures) is bool(beta)
    for name in figures:
        assert found._metrics["train"][name] == pytest.approx(stock._metrics["train"][name], rel=1e-4, abs=1e-6), name
    assert list(found._logs["advantages"]) == pytest.approx(list(stock._logs["advantages"]), rel=1e-4, abs=1e-5)
    if beta:
        assert abs(stock._metrics["train"]["kl"][0]) > 1e-3


@pytest.mark.parametrize("pack_tokens", [LARGE, SMALL], ids=["siblings together", "siblings apart"])
def test_in_bfloat16_the_gradient_is_trls_but_for_rounding(start: Path, tmp_path: Path, pack_tokens: int) -> None:
    stock, found = (
        trainer(start, tmp_path, pack_tokens=tokens, lora=True, bf16=True) for tokens in (None, pack_tokens)
    )
    theirs, ours = step(stock), step(found)
    assert float((ours - theirs).norm() / theirs.norm()) < 0.05


def test_siblings_that_do_not_fit_together_lie_apart_in_these_tests(start: Path, tmp_path: Path) -> None:
    apart, together = (trainer(start, tmp_path, pack_tokens=tokens, lora=True) for tokens in (SMALL, LARGE))
    step(apart)
    step(together)
    assert 0 < apart._late.sum() < len(apart._late)
    assert together._late.all()


def test_several_steps_on_a_batch_are_trls_as_well(start: Path, tmp_path: Path) -> None:
    """From the second one on, the policy is no longer that which wrote the completions."""

    def steps(pack_tokens: int | None) -> Tensor:
        found = trainer(start, tmp_path, pack_tokens=pack_tokens, lora=True, num_iterations=2)
        step(found)
        found.optimizer.step()
        gradient = step(found)
        assert len(found._metrics["train"]["kl"]) == 1
        return gradient

    theirs, ours = steps(None), steps(LARGE)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


@pytest.mark.parametrize("checkpointing", [False, True])
def test_checkpointed_layers_give_the_same_gradient(start: Path, tmp_path: Path, checkpointing: bool) -> None:
    def gradient(pack_tokens: int | None) -> Tensor:
        return step(trainer(start, tmp_path, pack_tokens=pack_tokens, lora=True, gradient_checkpointing=checkpointing))

    theirs, ours = gradient(None), gradient(LARGE)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_a_step_computes_each_token_once_by_the_reference_and_once_by_the_policy(start: Path, tmp_path: Path) -> None:
    found = trainer(start, tmp_path, pack_tokens=LARGE, lora=True)
    seen: list[int] = []
    embedding = found.model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, given, made: seen.append(given[0].numel()))
    step(found)
    asked = [[{"role": "user", "content": text}] for text in PROMPTS for _ in range(K)]
    prompts = found._tokenize_prompts(asked)[0]
    tokens = sum(len(prompt) for prompt in prompts[::K]) + sum(len(reply) for reply in dealt(found, prompts))
    assert len(seen) == 2
    assert seen[0] == seen[1] <= tokens


def test_completions_without_a_signal_are_counted_although_the_kl_comes_late(start: Path, tmp_path: Path) -> None:
    """All rewards are equal: with a KL there is a signal, without one there is none."""
    shares = {}
    for beta in (0.1, 0.0):
        found = trainer(start, tmp_path, pack_tokens=LARGE, lora=True, reward=nothing, beta=beta)
        step(found)
        shares[beta] = found._metrics["train"]["frac_reward_zero_std"]
    assert shares == {0.1: [0.0], 0.0: [1.0]}


def test_a_training_has_trls_curves_and_weights(start: Path, tmp_path: Path) -> None:
    logs, weights = [], []
    for pack_tokens in (None, LARGE):
        found = trainer(start, tmp_path, pack_tokens=pack_tokens, lora=False, learning_rate=1e-3, max_steps=3)
        found.train()
        logs.append([entry for entry in found.state.log_history if "loss" in entry])
        weights.append(torch.cat([weight.detach().flatten() for weight in found.model.parameters()]))
    for theirs, ours in zip(*logs, strict=True):
        shared = {
            "loss": "loss",
            "grad_norm": "grad_norm",
            "reward": "reward",
            "kl": "kl_per_token",
            "entropy": "entropy",
        }
        for name, own in shared.items():
            assert ours[own] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=2e-4)


def test_accumulated_batches_are_refused(start: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whole batches"):
        trainer(
            start, tmp_path, pack_tokens=LARGE, lora=True, per_device_train_batch_size=8, gradient_accumulation_steps=2
        )


@pytest.mark.parametrize(("apart", "ends"), [(0.0015, True), (0.0005, False)])
def test_a_loss_that_is_not_the_one_of_whole_batches_ends_the_training(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: float, ends: bool
) -> None:
    """The packs' losses are summed in another order, which is less than a thousandth; more is a mistake."""
    real = PackedPolicyTrainer._losses
    monkeypatch.setattr(PackedPolicyTrainer, "_losses", lambda *arguments: real(*arguments) + apart)
    with pytest.raises(StageError, match="is not RLOOTrainer's") if ends else nullcontext():
        step(trainer(start, tmp_path, pack_tokens=LARGE, lora=True))


def test_ranks_exchange_gradients_once_a_batch_with_its_last_pack(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trainer(start, tmp_path, pack_tokens=SMALL, lora=True)
    exchanged = backwards(found, monkeypatch)
    step(found)
    *packs, trainers_own = exchanged  # on the figure of the whole batch, which has no gradient
    assert len(packs) > 2 and trainers_own
    assert packs == [False] * (len(packs) - 1) + [True]


def test_each_step_between_two_lines_of_the_log_has_its_own_figures(start: Path, tmp_path: Path) -> None:
    figures = []
    for pack_tokens in (None, LARGE):
        found = trainer(start, tmp_path, pack_tokens=pack_tokens, lora=True, reward=nothing)
        step(found)
        step(found)
        figures.append({name: found._metrics["train"][name] for name in ("kl", "frac_reward_zero_std")})
    theirs, ours = figures
    assert [len(values) for values in ours.values()] == [2, 2]
    for name, values in theirs.items():
        assert ours[name] == pytest.approx(values, rel=1e-4, abs=1e-6), name
