"""A host that waits for its GPU leaves it idle: how often it does so is counted on a pretended one, and held.

What is left is transformers' look at the positions of a pack (one for each forward), and the figures of TRL's trainer.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from containers.algorithms.likelihood_objective import Likelihood
from containers.algorithms.offline_step import OfflineStep
from containers.algorithms.preference_objective import Preference
from containers.algorithms.reference_logps import computed_reference, with_reference
from containers.algorithms.reward_model import PackedPairTrainer
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES
from containers.models.token_batches import prompt_token_ids
from containers.packing.attention import packed
from containers.packing.logps import add_logps, causal_of
from containers.rollouts.generate import sampled_completions
from containers.rollouts.shared_prompts import sharing
from tests.unit.containers.algorithms import test_packed_training
from tests.unit.containers.algorithms.offline_cases import cuts, examples, policy_of, without_mismatched
from tests.unit.containers.algorithms.policy_cases import CUTS, Peer, step_batch
from tests.unit.containers.distributed.test_devices import own_accelerator, to_gpu
from tests.unit.factories.pretended_gpu import GPU, host_waits, move_to_gpu, pretended_gpu
from tests.unit.factories.tiny_policy import save_causal_model, tiny_causal_model, tiny_tokenizer

pytestmark = [pytest.mark.stages, pytest.mark.filterwarnings("ignore")]

__all__ = ["own_accelerator"]
PROMPTS = [[{"role": "user", "content": text}] for text in ("hi", "what is two plus two")]
# Of which transformers knows whether a row holds several sequences.
LOOK = "_local_scalar_dense in packing/logps.py, packed_logps"
SUMS = "tolist in distributed/sums.py, numbers"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_model(tmp_path_factory.mktemp("start"), scale=0.1, seed=3)


def test_each_way_to_wait_is_noticed_and_a_copy_to_the_gpu_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch), host_waits() as waits:
        values = torch.arange(4.0).to(GPU)
        mask = values > 1
        assert values[torch.tensor([1, 2])].shape == (2,) and values.masked_fill(mask, 0.0).shape == (4,)
        assert not waits
        ways: tuple[Callable[[], Any], ...] = (
            lambda: float(values[0]),
            lambda: values[0].item(),
            lambda: bool(mask[0]),
            lambda: values.tolist(),
            lambda: values.cpu(),
            lambda: values.to("cpu"),
            lambda: values[mask],
            lambda: mask.nonzero(),
            lambda: torch.repeat_interleave(values, torch.arange(4).to(GPU)),
        )
        for number, way in enumerate(ways, start=1):
            way()
            assert len(waits) == number, number


@pytest.mark.usefixtures("own_accelerator")
@pytest.mark.parametrize("cut", ["one pack", "2 packs", "siblings apart"])
@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "gspo"])
def test_an_update_of_the_policy_waits_once_for_its_figures(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, cut: str
) -> None:
    """RLOO's KL is part of the reward: advantages are made on the host, so it waits once for each pack's KL."""
    method = POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": 0.1})
    peer = Peer(start, tmp_path, algorithm, beta=0.1)
    batch = step_batch(*peer.tokens(), peer.trainer.processing_class)
    with pretended_gpu(monkeypatch):
        to_gpu(peer.trainer)
        step = peer.step(method, cut=CUTS[cut])
        num_packs = len(step.cut(batch.prompts, batch.completions))
        with host_waits() as prepared:
            step.prepare(peer.model, batch)
        peer.model.zero_grad()
        with host_waits() as updated:
            step.update(peer.model, batch)
    found = Counter(updated)
    late = found.pop("_to_copy in algorithms/policy_step.py, _fill_late", 0)
    assert late <= num_packs * (method.kl_place == "reward")
    assert found == {LOOK: num_packs, SUMS: 1}
    assert set(prepared) == {LOOK, SUMS}
    # The reference's; where siblings are in several packs, also the policy's and the KL of each row.
    assert Counter(prepared)[SUMS] <= (3 if cut == "siblings apart" and method.kl_place == "reward" else 1)


@pytest.mark.usefixtures("own_accelerator")
def test_a_step_on_pairs_waits_once_beside_the_figures_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = test_packed_training.trainer(
        PackedPairTrainer, tmp_path, test_packed_training.pairs(), lora=True, margin=True
    )
    with pretended_gpu(monkeypatch):
        to_gpu(trainer)
        trainer.create_optimizer_and_scheduler(2)
        trainer.current_gradient_accumulation_steps = 1
        with packed(trainer.model.get_base_model()):
            batch = next(iter(trainer.get_train_dataloader()))
            num_packs = len(trainer._packs(batch["pairs"]))
            with host_waits() as waits:
                trainer.training_step(trainer.model, batch, None)
    found = Counter(waits)
    assert num_packs > 1
    assert found.pop(SUMS) == 1
    assert found.pop("_local_scalar_dense in algorithms/reward_model.py, packed_scores") == num_packs
    assert found == {"_local_scalar_dense in algorithms/reward_model.py, compute_loss": 6}  # TRL's


@pytest.mark.parametrize("loss", ["sigmoid", "likelihood"])
def test_a_step_on_given_completions_waits_once_for_its_figures(
    start: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """Without backward: the pretended GPU knows none in which types change."""
    objective = Likelihood() if loss == "likelihood" else Preference(PREFERENCE_LOSSES[loss])
    rows, cut = without_mismatched(examples(objective.num_completions)), cuts(objective.num_completions)["2 packs"]
    model = policy_of(start).eval()
    add_logps(causal_of(model), temperature=1.0)
    accelerator: Any = SimpleNamespace(
        device=GPU, num_processes=1, autocast=nullcontext, unwrap_model=lambda given: given
    )
    with pretended_gpu(monkeypatch):
        move_to_gpu(model)
        given = with_reference(rows, computed_reference(model, rows, cut=cut, dtype=torch.float32))
        step = OfflineStep(accelerator=accelerator, objective=objective, cut=cut)
        with host_waits() as waits:
            step.measure(model, given)
    assert Counter(waits) == {LOOK: step._packs(given)[1], SUMS: 2}  # one for the loss, one for the figures


def test_a_token_from_shared_prompts_costs_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of transformers' loop, which must know whether all completions have ended."""
    cut, model = tiny_tokenizer(), tiny_causal_model(tiny_tokenizer(), seed=2)
    prompts = [ids for ids in prompt_token_ids(cut, PROMPTS) for _ in range(3)]
    counts = []
    with pretended_gpu(monkeypatch):
        move_to_gpu(model)
        for num_tokens in (4, 12):
            torch.manual_seed(3)
            with sharing(model), host_waits() as waits:
                found = sampled_completions(model, cut, prompts, max_new_tokens=num_tokens, temperature=1.0)
            assert max(len(completion.completion_ids) for completion in found) == num_tokens
            counts.append(len(waits))
    assert counts[1] - counts[0] == 12 - 4
    assert counts[0] - 4 <= 12
