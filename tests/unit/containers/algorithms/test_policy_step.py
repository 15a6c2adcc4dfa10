"""An update has the gradient of TRL's own trainers, however it is cut; what TRL lacks, that of its written formula.

The rule for denominators, which the cuts below check: a weight comes from the lengths of all completions of the step,
not of a pack or a rank.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from containers.algorithms.policy_step import PolicyStep
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS, PolicyAlgorithm
from containers.contracts.schedule import plan_minibatches
from containers.harness.errors import DivergedError
from containers.packing.logps import add_logps, causal_of, completion_packs
from containers.packing.padded import padded_rows_of
from containers.rollouts.rollout import Rollout, StepBatch, minibatch_rows
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

K, LONGEST, TEMPERATURE = 4, 16, 0.7
PROMPTS = ["Hi", "Which colour is a frog, and which is a crow?", "What is red, round and sweet?", "Why?"]
# TRL's settings for each algorithm. Its KL in the loss is that of the papers without `use_bias_correction_kl`.
TRLS: dict[str, dict[str, Any]] = {
    "rloo": {},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
}
# How far the old log-probabilities lie from the policy's: nats a token, so that limits act on more than a tenth.
APART = {"rloo": 0.4, "gspo": 0.01, "cispo": 2.0}
TOLERANCE = 1e-5
# Length of a step that takes some ratios beyond their limits.
FAR = 0.3
# One pack; several, in which all completions of a prompt lie together; and some prompts cut over two packs.
CUTS: dict[str, Callable[..., Any]] = {
    "one pack": partial(completion_packs, max_tokens=1000),
    "2 packs": partial(completion_packs, max_tokens=200),
    "siblings apart": partial(completion_packs, max_tokens=80),
    "padded rows": partial(padded_rows_of, at_a_time=3),
}


def dealt(prompt_ids: list[list[int]], end: int) -> list[list[int]]:
    """Completions of 1 to 16 letters; some end, some were cut off."""
    found = []
    for place, prompt in enumerate(prompt_ids):
        dice = random.Random(f"{prompt} {place}")  # noqa: S311
        letters = [dice.randrange(60, 90) for _ in range(dice.randrange(1, LONGEST))]
        found.append([*letters, end] if dice.random() < 0.5 else letters)
    return found


def variety(completions: list[Any], **_: Any) -> list[float]:
    """Any reward that differs between completions."""
    return [len(set(reply[0]["content"])) / 4 for reply in completions]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_model(tmp_path_factory.mktemp("start"), scale=0.1, seed=3)


class Peer:
    """TRL's trainer of an algorithm, whose completions are dealt, and its batch of one step."""

    def __init__(
        self, start: Path, folder: Path, algorithm: str, *, beta: float, lora: bool = True, **settings: Any
    ) -> None:
        kind, config = (RLOOTrainer, RLOOConfig) if algorithm == "rloo" else (GRPOTrainer, GRPOConfig)
        more = {} if algorithm == "rloo" else {"use_bias_correction_kl": False}
        adapters = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        self.trainer = kind(
            model=AutoModelForCausalLM.from_pretrained(start),
            reward_funcs=variety,
            args=config(
                output_dir=str(folder),
                num_generations=K,
                per_device_train_batch_size=K * len(PROMPTS) // settings.get("steps_per_generation", 1),
                gradient_accumulation_steps=1,
                max_completion_length=LONGEST,
                temperature=TEMPERATURE,
                beta=beta,
                gradient_checkpointing=False,
                report_to=[],
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                save_strategy="no",
                shuffle_dataset=False,
                **TRLS[algorithm],
                **more,
                **settings,
            ),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]),
            processing_class=AutoTokenizer.from_pretrained(start),
            peft_config=adapters if lora else None,
        )
        end = self.trainer.eos_token_ids[0]

        def generated(prompt_ids: Any, *_: Any, **__: Any) -> Any:
            found = dealt(prompt_ids, end)
            return found if algorithm == "rloo" else (found, None)

        self.trainer._generate_single_turn = generated
        self.model, self.algorithm = self.trainer.model, algorithm
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in self.model.parameters():
                if weight.requires_grad:
                    weight += 0.02 * torch.randn_like(weight)
        self.model.train()
        self.trainer.current_gradient_accumulation_steps = 1
        rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS for _ in range(K)]
        self.batch = self.trainer._generate_and_score_completions(rows)

    def noisy(self, apart: float) -> None:
        """Make the policy another one than that which wrote the completions."""
        batch = self.batch
        with torch.no_grad():
            logps = self.trainer._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].shape[1],
            )[0]
        noise = apart * torch.randn(logps.shape, generator=torch.Generator().manual_seed(7))
        self.old = (logps + noise) * batch["completion_mask"]
        if self.algorithm == "rloo":
            batch["old_logps"] = self.old.sum(dim=1)
        else:
            batch["old_per_token_logps"] = self.old

    def gradient(self) -> Tensor:
        self.model.zero_grad()
        self.trainer._compute_loss(self.model, self.batch).backward()
        return gradient_of(self.model)

    def tokens(self) -> tuple[list[list[int]], list[list[int]]]:
        """Prompts and completions without padding."""
        sides = ("prompt", "completion")
        prompts, completions = (
            [
                ids[mask.bool()].tolist()
                for ids, mask in zip(self.batch[f"{side}_ids"], self.batch[f"{side}_mask"], strict=True)
            ]
            for side in sides
        )
        return prompts, completions

    def step(self, method: PolicyAlgorithm, *, cut: Callable[..., Any], updates_per_rollout: int = 1) -> PolicyStep:
        add_logps(causal_of(self.model), temperature=TEMPERATURE)
        reference = self.trainer.ref_model
        if reference is not None:
            add_logps(causal_of(reference), temperature=TEMPERATURE)
        return PolicyStep(
            accelerator=self.trainer.accelerator,
            method=method,
            num_generations=K,
            longest=LONGEST,
            updates_per_rollout=updates_per_rollout,
            cut=cut,
            reference=reference,
        )

    def ours(self, method: PolicyAlgorithm, *, cut: Callable[..., Any]) -> tuple[Tensor, StepBatch, dict[str, float]]:
        """Our gradient, batch and sums of the same update on the same model."""
        step, batch = self.step(method, cut=cut), step_batch(*self.tokens(), self.trainer.processing_class)
        step.prepare(self.model, batch)
        if hasattr(self, "old"):
            batch.old = [old[: len(ids)] for old, ids in zip(self.old, batch.completions, strict=True)]
        self.model.zero_grad()
        _loss, sums = step.update(self.model, batch)
        return gradient_of(self.model), batch, sums


def step_batch(prompts: list[list[int]], completions: list[list[int]], tokenizer: Any) -> StepBatch:
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    rewards = variety([[{"content": text}] for text in texts])
    return StepBatch(
        prompts=prompts,
        completions=completions,
        first_row=0,
        rewards=torch.tensor(rewards, dtype=torch.float64),
        lengths=torch.tensor([len(ids) for ids in completions]),
        ended=torch.ones(len(completions), dtype=torch.bool),
        takes_part=torch.ones(len(completions), dtype=torch.bool),
        divides=torch.ones(len(completions) // K, dtype=torch.bool),
    )


def gradient_of(model: Any) -> Tensor:
    parts = [weight.grad.flatten() for _, weight in sorted(model.named_parameters()) if weight.grad is not None]
    return torch.cat(parts).clone()


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


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


@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "dr_grpo", "gspo", "sapo"])
def test_every_gradient_of_a_rollout_in_minibatches_and_epochs_is_trls(
    start: Path, tmp_path: Path, algorithm: str
) -> None:
    """DAPO and CISPO are left out: TRL divides by the rollout's tokens, ours by those of the minibatch."""
    minibatches = plan_minibatches(len(PROMPTS) * K, global_batch_size=len(PROMPTS) * K // 2, epochs=2)
    peer = Peer(
        start,
        tmp_path,
        algorithm,
        beta=0.05,
        num_iterations=2,
        steps_per_generation=2,
    )
    method = POLICY_ALGORITHMS[algorithm].model_copy(update={"beta": 0.05})
    step = peer.step(method, cut=CUTS["2 packs"], updates_per_rollout=minibatches.updates)
    batch = step_batch(*peer.tokens(), peer.trainer.processing_class)
    step.prepare(peer.model, batch)
    whole, rollout, limited = dict(peer.batch), Rollout(batch, minibatches, seed="0"), 0.0
    assert len(whole["completion_ids"]) == len(batch.completions)
    for number in range(minibatches.updates):
        groups = minibatch_rows(minibatches, number, num_groups=len(PROMPTS), seed="0")
        rows = torch.tensor([group * K + place for group in groups for place in range(K)])
        peer.batch = {
            name: value[rows] if isinstance(value, Tensor) and value.dim() else value for name, value in whole.items()
        }
        theirs = peer.gradient()
        peer.model.zero_grad()
        _loss, sums = step.update(peer.model, rollout.next_batch())
        assert apart(gradient_of(peer.model), theirs) < TOLERANCE, number
        limited += sums["limited"]
        with torch.no_grad():
            for weight in peer.model.parameters():
                if weight.grad is not None:
                    weight -= FAR * weight.grad / theirs.norm()
    assert rollout.is_used_up
    assert (limited > 0) is (method.objective != "soft"), "the policy moved too little"


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
