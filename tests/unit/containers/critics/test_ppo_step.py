"""PPO's gradients, of policy and critic, are those of its formulas written out over padded rows, however it is cut.

The formulas are OpenRLHF's (openrlhf/models/loss.py and trainer/ppo_utils/experience_maker.py, arXiv:2405.11143): the
KL is taken off each token's reward, the score comes at the last token, GAE, advantages less their mean and divided by
their deviation over the batch, min of ratio and clipped ratio, half the larger of both squared errors of the value, and
means over tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from containers.contracts.configs.parts.critic import CriticSettings
from containers.contracts.configs.parts.policy_algorithms import PolicyAlgorithm
from containers.contracts.schedule import Minibatches
from containers.critics.critic import Critic
from containers.packing.logps import add_logps, causal_of, completion_packs
from containers.packing.padded import padded_rows_of
from containers.rollouts.rollout import Rollout
from containers.scoring.scorer import score_head_weight
from tests.unit.containers.critics.ppo_cases import PPO, TEMPERATURE, Case, make_case
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

K, TOLERANCE = 3, 1e-5
CUTS: dict[str, Callable[..., Any]] = {
    "one pack": partial(completion_packs, max_tokens=1000),
    "2 packs": partial(completion_packs, max_tokens=80),
    "5 packs": partial(completion_packs, max_tokens=40),
    "padded rows": partial(padded_rows_of, at_a_time=2),
}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(Critic, "_step", lambda self: 0.0)  # gradients are compared, not weights
    return make_case(save_causal_model(tmp_path / "start", scale=0.1, seed=3), prompt_lengths=(4, 9), siblings=K)


@dataclass
class Known:
    """What both policies said of each completion's tokens when it was written."""

    old: list[Tensor]
    reference: list[Tensor]
    values: list[Tensor]
    lasts: list[float]


def row_logps(model: Any, prompt: list[int], completion: list[int]) -> Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    scores = (logits / TEMPERATURE).log_softmax(-1)
    return scores[range(len(completion)), completion]


def row_values(case: Case, prompt: list[int], completion: list[int]) -> Tensor:
    """[T + 1]: before each token, and after the last one."""
    hidden = case.critic.model.model(input_ids=torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
    scores = hidden[len(prompt) - 1 :] @ score_head_weight(case.value_model).T
    values: Tensor = 2.0 * scores[:, 0] + 0.3
    return values


@torch.no_grad()
def known(case: Case) -> Known:
    causal = causal_of(case.policy)
    pairs = list(zip(case.prompts, case.completions, strict=True))
    values = [row_values(case, *pair) for pair in pairs]
    old = [row_logps(causal, *pair) for pair in pairs]
    with case.policy.disable_adapter():
        reference = [row_logps(causal, *pair) for pair in pairs]
    return Known(old, reference, [row[:-1] for row in values], [float(row[-1]) for row in values])


def estimated_kl(old: Tensor, reference: Tensor, estimator: str) -> Tensor:
    difference = old - reference
    return {"k1": difference, "k2": difference**2 / 2, "k3": (-difference).exp() - 1 + difference}[estimator]


def written_out(
    case: Case, told: Known, method: PolicyAlgorithm, *, shifts: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The gradients of policy and critic, and the returns, by the formulas.

    Args:
        shifts: of each row, what is added to its old log-probabilities and values: another policy wrote it.
    """
    returns, advantages = [], []
    for row, completion in enumerate(case.completions):
        rewards = torch.zeros(len(completion))
        if method.kl_place == "token_reward":
            rewards -= method.beta * estimated_kl(told.old[row], told.reference[row], method.kl_estimator)
        rewards[-1] += float(case.rewards[row])
        last, after = 0.0, 0.0 if case.ended[row] else told.lasts[row]
        found = torch.zeros(len(completion))
        for place in range(len(completion) - 1, -1, -1):
            error = float(rewards[place]) + method.gae_discount * after - float(told.values[row][place])
            last = error + method.gae_discount * method.gae_lambda * last
            found[place], after = last, float(told.values[row][place])
        advantages.append(found)
        returns.append(found + told.values[row])
    everything = torch.cat(advantages)
    advantages = [(own - everything.mean()) / everything.std(unbiased=False) for own in advantages]
    case.clear()
    total, tokens = torch.zeros(()), sum(map(len, case.completions))
    for row, (prompt, completion) in enumerate(zip(case.prompts, case.completions, strict=True)):
        move = torch.zeros(len(completion)) if shifts is None else shifts[row]
        logps = row_logps(causal_of(case.policy), prompt, completion)
        ratio = (logps - told.old[row] - move).exp()
        own = advantages[row]
        total = total - torch.minimum(ratio * own, ratio.clamp(0.8, 1.2) * own).sum()
        if method.kl_place == "loss":
            total = total + method.beta * estimated_kl(logps, told.reference[row], method.kl_estimator).sum()
        if method.entropy_weight:
            logits = causal_of(case.policy)(input_ids=torch.tensor([[*prompt, *completion]])).logits
            scores = (logits[0, len(prompt) - 1 : -1] / TEMPERATURE).log_softmax(-1)
            total = total + method.entropy_weight * (scores.exp() * scores).sum()
        values, old = row_values(case, prompt, completion)[:-1], told.values[row] + move
        bounded = old + (values - old).clamp(-0.2, 0.2)
        total = total + torch.maximum((values - returns[row]) ** 2, (bounded - returns[row]) ** 2).sum() / 2
    (total / tokens).backward()
    return *case.gradients(), returns


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


METHODS = {
    "k1 in the reward": PPO,
    "k2 in the reward": PPO.model_copy(update={"kl_estimator": "k2", "gae_discount": 0.9}),
    "k3 in the reward": PPO.model_copy(update={"kl_estimator": "k3", "gae_lambda": 1.0}),
    "k3 in the loss": PPO.model_copy(update={"kl_estimator": "k3", "kl_place": "loss"}),
    "an entropy bonus": PPO.model_copy(update={"entropy_weight": 0.3}),
    "no KL": PPO.model_copy(update={"beta": 0.0}),
}


@pytest.mark.parametrize("name", METHODS)
def test_one_update_has_the_gradients_of_the_formulas(case: Case, name: str) -> None:
    method, told = METHODS[name], known(case)
    learns = method.entropy_weight > 0
    add_logps(causal_of(case.policy), temperature=TEMPERATURE, entropy_learns=learns)
    of_policy, of_critic, returns = written_out(case, told, method)
    assert min(of_policy.norm(), of_critic.norm()) > 1e-3
    for cut_name, cut in CUTS.items():
        step, batch = case.step(cut, method=method), case.batch()
        step.prepare(case.policy, batch)
        case.clear()
        step.update(case.policy, batch)
        ours = case.gradients()
        assert apart(ours[0], of_policy) < TOLERANCE, (cut_name, "policy")
        assert apart(ours[1], of_critic) < TOLERANCE, (cut_name, "critic")
        assert torch.cat(batch.values).tolist() == pytest.approx(torch.cat(told.values).tolist(), abs=1e-5)
        assert torch.cat(batch.returns).tolist() == pytest.approx(torch.cat(returns).tolist(), abs=1e-4)


def test_a_second_update_limits_ratios_and_values_by_what_they_were(case: Case) -> None:
    """As if another policy and another critic had seen the completions when they were new."""
    told = known(case)
    torch.manual_seed(11)
    shifts = [0.3 * torch.randn(len(completion)) for completion in case.completions]
    of_policy, of_critic, _ = written_out(case, told, PPO, shifts=shifts)
    for cut_name, cut in CUTS.items():
        step, batch = case.step(cut, updates=2), case.batch()
        step.prepare(case.policy, batch)
        assert all(old is not None for old in batch.old) and batch.values
        batch.old = [old + move for old, move in zip(batch.old, shifts, strict=True) if old is not None]
        batch.values = [value + move for value, move in zip(batch.values, shifts, strict=True)]
        case.clear()
        _loss, sums = step.update(case.policy, batch)
        assert 0.1 < sums["limited"] / sums["tokens"] < 0.9
        assert 0.1 < case.critic.curves["critic_clipped_fraction"] < 0.9
        ours = case.gradients()
        assert apart(ours[0], of_policy) < TOLERANCE, (cut_name, "policy")
        assert apart(ours[1], of_critic) < TOLERANCE, (cut_name, "critic")


def test_minibatches_have_the_advantages_of_the_whole_rollout_and_cover_it_once_an_epoch(case: Case) -> None:
    step, batch = case.step(CUTS["2 packs"], updates=4), case.batch()
    step.prepare(case.policy, batch)
    everything = torch.cat([row for row in batch.advantages if row is not None])
    assert everything.mean() == pytest.approx(0, abs=1e-5) and everything.std(unbiased=False) == pytest.approx(
        1, abs=1e-4
    )
    rollout = Rollout(batch.gathered(batch.prompts, batch.completions), Minibatches(2, 2), seed="7 6")
    seen = []
    while not rollout.is_used_up:
        part = rollout.next_batch()
        step.update(case.policy, part)
        seen.append([row for ids in part.completions for row, own in enumerate(case.completions) if own == ids])
    assert [len(rows) for rows in seen] == [K] * 4
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == list(range(2 * K))


def test_a_rollout_that_was_saved_in_between_gives_the_same_minibatches(case: Case, tmp_path: Path) -> None:
    step, batch = case.step(CUTS["2 packs"], updates=4), case.batch()
    step.prepare(case.policy, batch)
    rollout = Rollout(batch.gathered(batch.prompts, batch.completions), Minibatches(2, 2), seed="7 6")
    rollout.next_batch()
    rollout.save(tmp_path / "rollout.safetensors")
    again = Rollout.load(tmp_path / "rollout.safetensors", case.prompts, Minibatches(2, 2), rank=0, num_ranks=1)
    while not rollout.is_used_up:
        one, other = rollout.next_batch(), again.next_batch()
        for name, value in vars(one).items():
            found = getattr(other, name)
            if isinstance(value, Tensor):
                assert torch.equal(value, found) and value.dtype == found.dtype, name
            elif value and isinstance(value[0] if isinstance(value, list) else None, Tensor):
                assert all(map(torch.equal, value, found)), name
            else:
                assert value == found, name
    assert again.is_used_up


def test_a_rollout_that_is_given_up_has_no_update_left(case: Case) -> None:
    rollout = Rollout(case.batch(), Minibatches(2, 2), seed="7 6")
    rollout.next_batch()
    assert not rollout.is_used_up
    rollout.give_up()
    assert rollout.is_used_up


def test_completions_that_take_no_part_count_nowhere(case: Case) -> None:
    gradients = []
    for number in (2 * K, K):
        batch = case.batch(range(number))
        batch.takes_part[K:] = False
        step = case.step(CUTS["one pack"])
        step.prepare(case.policy, batch)
        case.clear()
        step.update(case.policy, batch)
        gradients.append(case.gradients())
    for ours, theirs in zip(*gradients, strict=True):
        assert apart(ours, theirs) < TOLERANCE


def test_the_policy_stays_until_the_critic_explains_enough_or_its_time_is_over(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    case.critic.settings = CriticSettings(warmup_steps=3, minimum_explained_variance=1.0)
    case.critic.is_ready, case.critic.note = False, said.append

    def counted(self: Critic) -> float:
        self.steps += 1
        return 0.0

    monkeypatch.setattr(Critic, "_step", counted)
    moves = []
    for _ in range(5):
        step, batch = case.step(CUTS["one pack"]), case.batch()
        step.prepare(case.policy, batch)
        case.clear()
        loss, sums = step.update(case.policy, batch)
        moves.append(any(weight.grad is not None for weight in case.policy.parameters()))
        assert bool(sums["tokens"]) is moves[-1] and (float(loss) != 0) is moves[-1]
    assert moves == [False, False, False, True, True]
    assert len(said) == 1 and said[0].startswith("Warning: the critic explains") and "after 3 steps" in said[0]
    case.critic.is_ready, case.critic.settings = False, CriticSettings(minimum_explained_variance=0.0)
    case.critic.explained = 0.5
    case.critic._decide()
    assert case.critic.is_ready and "so the policy begins to move" in said[1]
