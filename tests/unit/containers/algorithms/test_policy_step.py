"""An update has the gradient of TRL's own trainers, however it is cut; what TRL lacks, that of its written formula.

The rule for denominators, which the cuts check: a weight comes from the lengths of all completions of the step, not of
a pack or a rank.
"""

from pathlib import Path

import pytest
import torch

from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.harness.errors import DivergedError
from tests.unit.containers.algorithms.policy_cases import (
    APART,
    CUTS,
    TOLERANCE,
    TRLS,
    K,
    Peer,
    apart,
    gradient_of,
    step_batch,
)
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_model(tmp_path_factory.mktemp("start"), scale=0.1, seed=3)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("algorithm", TRLS)
def test_the_gradient_is_trls_however_the_step_is_cut(start: Path, tmp_path: Path, algorithm: str, beta: float) -> None:
    peer = Peer(start, tmp_path, algorithm, beta=beta)
    theirs, method = peer.gradient(), POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": beta})
    assert theirs.norm() > 1e-3
    for name, cut in CUTS.items():
        ours, batch, sums = peer.ours(method, cut=cut)
        assert apart(ours, theirs) < TOLERANCE, name
        assert sums["tokens"] == int(batch.lengths.sum())
        assert sums["ratio"] == pytest.approx(sums["tokens"])


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("algorithm", TRLS)
def test_the_gradient_is_trls_where_another_policy_wrote_the_completions_and_limits_act(
    start: Path, tmp_path: Path, algorithm: str, beta: float
) -> None:
    peer = Peer(start, tmp_path, algorithm, beta=beta)
    peer.noisy(APART.get(algorithm, 0.5))
    theirs, method = peer.gradient(), POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": beta})
    for name in ("2 packs", "padded rows"):
        ours, _batch, sums = peer.ours(method, cut=CUTS[name])
        assert apart(ours, theirs) < TOLERANCE, name
        assert (sums["limited"] / sums["tokens"] > 0.1) is (method.objective != "soft")


@pytest.mark.parametrize("algorithm", ["rloo", "grpo"])
def test_the_gradient_of_a_whole_model_beside_its_own_reference_is_trls(
    start: Path, tmp_path: Path, algorithm: str
) -> None:
    peer = Peer(start, tmp_path, algorithm, beta=0.1, lora=False)
    theirs, method = peer.gradient(), POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": 0.1})
    ours, _batch, sums = peer.ours(method, cut=CUTS["2 packs"])
    assert apart(ours, theirs) < TOLERANCE
    assert abs(sums["kl"]) > 1e-3


def test_advantages_are_trls(start: Path, tmp_path: Path) -> None:
    for algorithm in TRLS:
        peer = Peer(start, tmp_path, algorithm, beta=0.1)
        method = POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": 0.1})
        for cut in ("one pack", "siblings apart"):
            _gradient, batch, _sums = peer.ours(method, cut=CUTS[cut])
            found = [float(value) for value in batch.advantages if value is not None]
            assert found == pytest.approx(peer.batch["advantages"].tolist(), rel=1e-4, abs=1e-5)


def test_reinforce_plus_plus_is_its_formula(start: Path, tmp_path: Path) -> None:
    """arXiv:2501.03262, eq. 8 to 10: A = r − β Σ KL from the token on, normalised over all tokens; then PPO's clip."""
    peer = Peer(start, tmp_path, "grpo", beta=0.1)
    peer.noisy(0.5)
    mask = peer.batch["completion_mask"].bool()
    prompts, completions = peer.tokens()
    rewards = step_batch(prompts, completions, peer.trainer.processing_class).rewards.float()
    logps = peer.trainer._get_per_token_logps_and_entropies(
        peer.model,
        torch.cat([peer.batch["prompt_ids"], peer.batch["completion_ids"]], dim=1),
        torch.cat([peer.batch["prompt_mask"], peer.batch["completion_mask"]], dim=1),
        mask.shape[1],
    )[0]
    # Advantages from the policy's own log-probabilities, as they are before the first update of a batch.
    kl = (logps.detach() - peer.batch["ref_per_token_logps"]) * mask
    advantages = rewards[:, None] - 0.1 * kl.flip(1).cumsum(1).flip(1)
    advantages = (advantages - advantages[mask].mean()) / advantages[mask].std(unbiased=False)
    ratio = (logps - peer.old).exp()
    objective = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    peer.model.zero_grad()
    (objective[mask].sum() / mask.sum()).backward()
    theirs = gradient_of(peer.model)
    method = POLICY_ALGORITHMS["reinforce++"].model_copy(update={"beta": 0.1})
    for cut in CUTS.values():
        assert apart(peer.ours(method, cut=cut)[0], theirs) < TOLERANCE


def test_completions_that_take_no_part_count_nowhere(start: Path, tmp_path: Path) -> None:
    """The step is that of the other completions alone: neither numerator nor denominator has them."""
    peer = Peer(start, tmp_path, "grpo", beta=0.0)
    prompts, completions = peer.tokens()
    for name in ("grpo", "dapo", "dr_grpo", "rloo", "reinforce++"):
        method = POLICY_ALGORITHMS[name].model_copy(update={"beta": 0.0})
        step = peer.step(method, cut=CUTS["one pack"])
        gradients = []
        # The last prompt's completions take no part, or are not there.
        for number in (len(completions), len(completions) - K):
            batch = step_batch(prompts[:number], completions[:number], peer.trainer.processing_class)
            batch.takes_part[len(completions) - K :] = False
            step.prepare(peer.model, batch)
            peer.model.zero_grad()
            step.update(peer.model, batch)
            gradients.append(gradient_of(peer.model))
        assert apart(*gradients) < TOLERANCE, name


def test_a_step_computes_each_token_once_by_the_reference_and_once_by_the_policy(start: Path, tmp_path: Path) -> None:
    """Although the advantages need the policy's KL: its siblings are in one pack."""
    peer = Peer(start, tmp_path, "rloo", beta=0.1)
    seen: list[int] = []
    embedding = peer.model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, given, made: seen.append(given[0].numel()))
    peer.ours(POLICY_ALGORITHMS["rloo"], cut=CUTS["one pack"])
    prompts, completions = peer.tokens()
    assert len(seen) == 2
    assert seen[0] == seen[1] <= sum(map(len, prompts[::K])) + sum(map(len, completions))


def test_a_log_probability_that_is_not_finite_ends_the_step(start: Path, tmp_path: Path) -> None:
    peer = Peer(start, tmp_path, "grpo", beta=0.0)
    with torch.no_grad():
        next(weight for weight in peer.model.parameters() if weight.requires_grad).fill_(torch.nan)
    with pytest.raises(DivergedError, match="log-probabilities is nan"):
        peer.ours(POLICY_ALGORITHMS["grpo"], cut=CUTS["one pack"])
