"""What computes on a GPU keeps all of it there: tried on a pretended one, with the outcome of the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from torch import Tensor
from transformers import Qwen3ForSequenceClassification

from containers.algorithms.reward_model import PackedPairTrainer
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.models.token_batches import prompt_token_ids
from containers.packing import attention as packed_attention
from containers.packing import kernel as tree_kernel
from containers.packing.attention import packed
from containers.rollouts.generate import completion_logprobs, generate_completions, sampled_completions
from containers.rollouts.shared_prompts import sharing
from containers.scoring.scorer import RewardScorer
from tests.unit.containers.algorithms import test_packed_training
from tests.unit.containers.algorithms.policy_cases import CUTS, Peer, gradient_of, step_batch
from tests.unit.containers.packing import test_tree_kernel
from tests.unit.factories.pretended_gpu import GPU, MixedDevicesError, move_to_gpu, on_cpu, pretended_gpu
from tests.unit.factories.tiny_policy import save_causal_model, tiny_causal_model, tiny_config, tiny_tokenizer

pytestmark = pytest.mark.stages

PROMPTS = [[{"role": "user", "content": text}] for text in ("hi", "what is two plus two")]


@pytest.fixture
def own_accelerator() -> Iterator[None]:
    """Accelerate's idea of the device, put back."""
    kept = [(state, dict(state._shared_state)) for state in (PartialState, AcceleratorState)]
    yield
    for state, before in kept:
        state._shared_state.clear()
        state._shared_state.update(before)


def to_gpu(trainer: Any) -> Any:
    """The trainer, as if its models and its batches lay on a GPU."""
    for state in (PartialState, AcceleratorState):
        state._shared_state["device"] = GPU
    trainer.args.__dict__["_setup_devices"] = GPU
    for model in (trainer.model, getattr(trainer, "ref_model", None)):
        if model is not None:
            move_to_gpu(model)
    return trainer


def close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm() / other.norm()) < 1e-4


def scorer(*, gpu: bool) -> RewardScorer:
    torch.manual_seed(1)
    cut = tiny_tokenizer()
    model = Qwen3ForSequenceClassification(tiny_config(cut, initializer_range=0.3, num_labels=1))
    return RewardScorer(move_to_gpu(model) if gpu else model, cut, max_length=512, batch_size=4, batch_tokens=256)


def test_scores_packed_and_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ("four", "five, I think", "no idea")
    asked = [[*prompt, {"role": "assistant", "content": text}] for prompt in PROMPTS for text in answers]
    wanted = scorer(gpu=False).score(asked)
    with pretended_gpu(monkeypatch):
        found = scorer(gpu=True)
        assert found.score(asked) == pytest.approx(wanted, abs=1e-4)
    assert not found.padded_since


def test_a_mask_that_is_made_on_the_cpu_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = packed_attention._behind_trunk
    monkeypatch.setattr(packed_attention, "_behind_trunk", lambda trunk, branch, _: behind(trunk, branch, "cpu"))
    sequences = [[1, 2, 3, 4], [1, 2, 5]]
    with pretended_gpu(monkeypatch), pytest.raises(MixedDevicesError):
        scorer(gpu=True)._packed(sequences)


def test_generation_and_its_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tiny_tokenizer()
    # The pretended GPU draws with the CPU's random numbers.
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda *_: torch.get_rng_state())
    monkeypatch.setattr("torch.cuda.set_rng_state", lambda *_: None)

    def written(model: Any) -> tuple[list[tuple[int, ...]], list[float]]:
        ids = prompt_token_ids(cut, PROMPTS)
        found = generate_completions(model, cut, ids, max_new_tokens=6, temperature=1.0, batch_size=2, seed=1)
        logprobs = completion_logprobs(model, found, pad_id=cut.pad_token_id, batch_size=2)
        return [item.completion_ids for item in found], logprobs

    wanted = written(tiny_causal_model(cut))
    with pretended_gpu(monkeypatch):
        found = written(move_to_gpu(tiny_causal_model(cut)))
    assert found[0] == wanted[0]
    assert found[1] == pytest.approx(wanted[1], abs=1e-3)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What stands in for the GPU's kernel for all trees of a row, in float32; the queries of each call."""
    calls: list[int] = []

    def attend(*states: Any, **more: Any) -> Tensor:
        calls.append(len(states[0]))
        return test_tree_kernel.RIGHT(*states, **more)

    monkeypatch.setattr(tree_kernel, "_failures", {})
    monkeypatch.setattr(tree_kernel, "_DTYPES", (torch.float32,))
    monkeypatch.setattr(tree_kernel, "varlen_attn", attend)
    tree_kernel._segments.cache_clear()
    return calls


@pytest.mark.usefixtures("own_accelerator")
@pytest.mark.parametrize("by_kernel", [False, True], ids=["branch by branch", "by one kernel"])
def test_a_step_on_packed_pairs_with_checkpointing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_kernel: bool, request: pytest.FixtureRequest
) -> None:
    calls = request.getfixturevalue("kernel") if by_kernel else []

    def made() -> Any:
        rows = test_packed_training.pairs()
        return test_packed_training.trainer(
            PackedPairTrainer, tmp_path, rows, lora=True, margin=True, gradient_checkpointing=True
        )

    def gradient(trainer: Any) -> Tensor:
        trainer.create_optimizer_and_scheduler(2)
        trainer.current_gradient_accumulation_steps = 1
        with packed(trainer.model.get_base_model()):
            trainer.training_step(trainer.model, next(iter(trainer.get_train_dataloader())), None)
        weights = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
        return torch.cat([on_cpu(weight).flatten() for weight in weights])

    wanted = gradient(made())
    assert not calls, "a CPU has no such kernel"
    trainer = made()
    with pretended_gpu(monkeypatch):
        assert close(gradient(to_gpu(trainer)), wanted)
    assert bool(calls) is by_kernel


@pytest.mark.usefixtures("own_accelerator")
@pytest.mark.parametrize("lora", [True, False], ids=["LoRA", "whole model"])
@pytest.mark.parametrize("algorithm", ["rloo", "gspo"])
@pytest.mark.parametrize("cut", ["2 packs", "siblings apart", "padded rows"])
def test_a_step_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: bool, algorithm: str, cut: str
) -> None:
    start = save_causal_model(tmp_path / "start", scale=0.1, seed=3)
    method = POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": 0.1})

    def made() -> Peer:
        return Peer(start, tmp_path, algorithm, beta=0.1, lora=lora)

    wanted = made().ours(method, cut=CUTS[cut])[0]
    peer = made()
    batch = step_batch(*peer.tokens(), peer.trainer.processing_class)
    with pretended_gpu(monkeypatch):
        to_gpu(peer.trainer)
        step = peer.step(method, cut=CUTS[cut])
        step.prepare(peer.model, batch)
        peer.model.zero_grad()
        step.update(peer.model, batch)
        assert close(on_cpu(gradient_of(peer.model)), wanted)


def test_completions_of_a_policy_that_writes_from_shared_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    cut, model = tiny_tokenizer(), tiny_causal_model(tiny_tokenizer(), seed=2)
    prompts = [ids for ids in prompt_token_ids(cut, PROMPTS) for _ in range(3)]

    def drawn() -> list[str]:
        torch.manual_seed(3)
        with sharing(model):
            found = sampled_completions(model, cut, prompts, max_new_tokens=6, temperature=1.0)
        return [completion.text for completion in found]

    wanted = drawn()
    with pretended_gpu(monkeypatch):
        move_to_gpu(model)
        assert drawn() == wanted
