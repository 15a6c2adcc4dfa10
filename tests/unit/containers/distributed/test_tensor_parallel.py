"""A model that programs hold together computes what a whole one does; what cannot be divided is refused beforehand."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.names import StageName
from containers.contracts.records import PolicyEvaluation
from containers.distributed import spread_team
from containers.distributed.spread import Spread
from containers.distributed.spread_worker import Membership
from containers.harness.errors import BadConfigError, DivergedError, StageError
from containers.models.loading import load_reward_model
from containers.models.over_gpus import load_writer, reward_model_over_gpus, writer_over_gpus
from containers.rollouts.generate import completion_logprobs, generate_completions
from containers.scoring.scorer import RewardScorer
from containers.stages import evaluate_reward_model
from tests.fakes.team_work import dies_in_one, fails_in_one, join_alone, numbers_held
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.spec_factory import CPU, colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import evaluated_policy, save_causal_model, save_reward_model, tiny_tokenizer

pytestmark = pytest.mark.stages

TOGETHER = CPU.model_copy(update={"tensor_parallel": 2})
TALKS = [[{"role": "user", "content": "q" * n}, {"role": "assistant", "content": "a" * (40 - n)}] for n in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reward_model(tmp_path_factory.mktemp("reward") / "model")


@pytest.fixture(scope="module")
def teams(folder: Path) -> Iterator[Spread[Any]]:
    """Two teams of two programs."""
    arguments = {"folder": folder, "dtype": torch.float32, "share_of": 2}
    found = Spread(load_reward_model, arguments, gpus=("", "", "", "", ""), team=2)
    yield found
    found.close()


@pytest.mark.parametrize("packs", [True, False])
def test_scores_are_those_of_a_whole_model(folder: Path, teams: Spread[Any], packs: bool) -> None:
    whole = RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=200, batch_size=4)
    together = RewardScorer(whole.model, whole.tokenizer, max_length=200, batch_size=4, spread=teams)
    for scorer in (whole, together):
        scorer.padded_since = "" if packs else "a test"
    assert together.score(TALKS) == pytest.approx(whole.score(TALKS), abs=1e-5)
    assert not together.padded_since or not packs, "the trial of packs passed on shares, too"


def test_each_holds_about_half(folder: Path, teams: Spread[Any]) -> None:
    whole = sum(weight.numel() for weight in load_reward_model(folder, dtype=torch.float32, device="cpu").parameters())
    held = teams.map(None, numbers_held, [1, 2, 3], sizes=[1, 1, 1])
    assert len(held) == 3 and all(0.4 * whole < number < 0.6 * whole for number in held)


def test_completions_and_their_probabilities_are_those_of_a_whole_model(tmp_path: Path) -> None:
    folder = save_causal_model(tmp_path / "model")
    model, tokenizer = load_writer(folder, torch.float32, "cpu")
    prompts = [tokenizer("x" * (3 + number))["input_ids"] for number in range(7)]
    pad = int(tokenizer.pad_token_id)
    writer, spread = writer_over_gpus(folder, TOGETHER, tokenizer)
    assert spread is not None
    assert {weight.device.type for weight in writer[0].parameters()} == {"meta"}, "this process holds no weights"
    try:
        for temperature in (0.0, 1.0):
            settings: dict[str, Any] = {"max_new_tokens": 12, "temperature": temperature, "batch_size": 3, "seed": 5}
            told: list[int] = []
            alone = generate_completions(model, tokenizer, prompts, **settings)
            together = generate_completions(*writer, prompts, **settings, spread=spread, on_batch=told.append)
            assert together == alone
            assert len(told) == 3 and told[-1] == len(prompts), "progress after each batch"
            alone_logps = completion_logprobs(model, alone, pad_id=pad, batch_size=3)
            logps = completion_logprobs(writer[0], alone, pad_id=pad, batch_size=3, spread=spread)
            assert logps == pytest.approx(alone_logps, abs=1e-4)
    finally:
        spread.close()


def test_the_certificate_is_that_of_a_whole_model(tmp_path: Path, folder: Path) -> None:
    config = EvaluateRewardModelConfig(max_length=256, num_bootstrap=200)
    found = []
    for name, profile in (("whole", CPU), ("together", TOGETHER)):
        inputs = {"pairs": write_pairs(tmp_path / name / "pairs", colour_rows(1)), "reward_model": folder}
        context = make_context(tmp_path / name, StageName.EVALUATE_REWARD_MODEL, config, inputs, profile=profile)
        evaluate_reward_model.run(context)
        found.append(Certificate.model_validate_json((context.output / "certificate.json").read_bytes()))
    whole, together = found
    assert together.model == whole.model
    assert together.score_mean == pytest.approx(whole.score_mean, abs=1e-5)
    assert together.suites[0].accuracy == whole.suites[0].accuracy
    assert len(together.parity.paths) == len(whole.parity.paths) and together.parity.holds


@pytest.mark.slow
def test_a_policy_is_judged_as_a_whole_one(tmp_path: Path, folder: Path) -> None:
    config = EvaluatePolicyConfig(max_completion_length=8, max_prompt_length=100)
    save_causal_model(tmp_path / "policy" / "model", seed=4)
    inputs = {
        "prompts": write_prompts(tmp_path / "pairs", evaluation=[f"count to {n}" for n in range(6)]),
        "start_model": save_causal_model(tmp_path / "start", seed=3),
        "policy": tmp_path / "policy",
        "reward_model": folder,
    }
    found = []
    for name, profile in (("whole", CPU), ("together", TOGETHER)):
        _, judged = evaluated_policy(tmp_path / name, config, inputs, profile=profile)
        text = (judged.output / "policy_evaluation.json").read_text()
        found.append(PolicyEvaluation.model_validate_json(text))
    whole, together = found
    assert together.win_rate == whole.win_rate
    assert together.kl.value == pytest.approx(whole.kl.value, abs=1e-4)


def test_what_cannot_be_divided_is_refused_with_what_would_do(tmp_path: Path, folder: Path) -> None:
    three = CPU.model_copy(update={"tensor_parallel": 3})
    with pytest.raises(BadConfigError, match=r"3 GPUs cannot divide 4 query heads and 2 heads .* Use 1 or 2\."):
        reward_model_over_gpus(folder, three)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(BadConfigError, match=r"is an adapter.*Merge it"):
        reward_model_over_gpus(adapter, TOGETHER)
    other = tmp_path / "gpt2"
    GPT2ForSequenceClassification(
        GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=300, num_labels=1)
    ).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    with pytest.raises(BadConfigError, match="no plan by which to divide the layers of gpt2"):
        reward_model_over_gpus(other, TOGETHER)


def test_a_share_that_is_not_finite_is_refused_with_its_kind(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    whole = load_reward_model(folder, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        whole.model.layers[1].mlp.down_proj.weight[0, -1] = float("nan")  # in the second member's share
    whole.save_pretrained(folder)
    with pytest.raises(DivergedError, match=r"down_proj\.weight is not finite"):
        reward_model_over_gpus(folder, TOGETHER)


def test_members_that_do_not_meet_say_which_setting_to_change(tmp_path: Path) -> None:
    first, second = Pipe()
    member = Membership(str(tmp_path / "store"), 0, 2, 60, "Set nccl.p2p_disable to true")
    alone = multiprocessing.get_context("spawn").Process(target=join_alone, args=(member, second))
    alone.start()
    kind, error = first.recv()
    alone.join()
    assert kind == "refused" and str(error).endswith("in 1 s: Set nccl.p2p_disable to true.")
    assert alone.exitcode == 1


def test_a_member_that_fails_or_dies_is_an_error_and_no_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_team, "_REST_S", 2.0)
    arguments = {"folder": folder, "dtype": torch.float32, "share_of": 2}
    for work, says in ((fails_in_one, "unlucky.*wait for it"), (dies_in_one, "exit code -9|failed: ")):
        spread = Spread(load_reward_model, arguments, gpus=("", ""), team=2)
        try:
            with pytest.raises(StageError, match=says):
                spread.map(None, work, [1], sizes=[1])
        finally:
            spread.close()
