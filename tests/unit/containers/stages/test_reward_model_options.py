"""Each option of reward-model training must reach the weights, survive a reload, and leave a resume bit-exact."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from containers.algorithms.reward_model import PairTrainer, zero_sum_loss
from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig
from containers.contracts.configs.parts.training import OptimizerSettings, TrainingSchedule
from containers.contracts.names import StageName
from containers.evals.sample_predictions import read_sample_predictions
from containers.harness.context import StageContext
from containers.models.score_token import SCORE_TOKEN
from containers.scoring.scorer import RewardScorer
from containers.stages import evaluate_reward_model, train_reward_model
from containers.training.callbacks import RecorderCallback
from tests.unit.factories.reward_model_factory import (
    logged_scores,
    merged_sha256,
    reward_model_context,
    training_info_of,
    transformers_scores,
    values_of,
)
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

SHORT = TrainingSchedule(max_steps=4, eval_steps=2)
PLAIN = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}"


def _train(folder: Path, **changes: Any) -> tuple[StageContext, dict[str, float]]:
    context = reward_model_context(folder, **{"schedule": SHORT, **changes})
    return context, values_of(train_reward_model.run(context))


def _start_model(folder: Path, *, spare_rows: int) -> None:
    """A start model whose embedding has that many rows more than its tokenizer has tokens."""
    tokenizer = tiny_tokenizer()
    model = tiny_causal_model(tokenizer, scale=0.02)
    model.resize_token_embeddings(len(tokenizer) + spare_rows)
    model.save_pretrained(folder / "start")
    tokenizer.save_pretrained(folder / "start")


@pytest.mark.parametrize("spare_rows", [0, 5])
@pytest.mark.parametrize("trainable", ["lora", "full", "head"])
def test_a_score_token_carries_the_score_for_whoever_loads_the_model(
    tmp_path: Path, trainable: str, spare_rows: int
) -> None:
    _start_model(tmp_path, spare_rows=spare_rows)
    more = {} if trainable == "lora" else {"lora": None}
    context, values = _train(tmp_path, use_cls=True, trainable=trainable, **more)
    assert values["reload_max_difference"] <= 1e-4
    merged = context.output / "merged"
    tokenizer = AutoTokenizer.from_pretrained(merged)
    conversations, logged = logged_scores(context)
    ids = tokenizer.apply_chat_template(conversations[0], return_dict=True)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids).count(SCORE_TOKEN) == 1
    assert tokenizer.convert_ids_to_tokens(ids)[-1] == SCORE_TOKEN
    prompt = tokenizer.apply_chat_template(conversations[0][:1], tokenize=False, add_generation_prompt=True)
    assert SCORE_TOKEN not in prompt
    assert transformers_scores(merged, conversations) == pytest.approx(logged, abs=1e-4)
    rows = load_file(merged / "model.safetensors")["model.embed_tokens.weight"].shape[0]
    assert rows == 259 + max(spare_rows, 1)


def test_the_row_of_the_score_token_is_trained_and_lies_in_the_adapter(tmp_path: Path) -> None:
    context, _ = _train(tmp_path, use_cls=True)
    adapter = load_file(context.output / "adapter" / "adapter_model.safetensors")
    (row,) = (value for name, value in adapter.items() if "token_adapter" in name)
    start = load_file(tmp_path / "start" / "model.safetensors")["model.embed_tokens.weight"]
    assert row.shape == (1, 32)
    assert not torch.equal(row[0], start.mean(dim=0))
    assert (row[0] - start.mean(dim=0)).abs().max() < 0.1


def test_head_only_training_changes_the_head_and_nothing_else(tmp_path: Path) -> None:
    context, values = _train(tmp_path, trainable="head", lora=None)
    assert values["trainable_parameters"] == 32
    start, merged = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "start", context.output / "merged")
    )
    assert all(torch.equal(merged[name], weight) for name, weight in start.items() if name in merged)
    head = "base_model.model.score.weight"
    saved = [load_file(context.checkpoints / f"checkpoint-{step}" / "adapter_model.safetensors") for step in (2, 4)]
    assert [list(tensors) for tensors in saved] == [[head], [head]]
    assert not torch.equal(saved[0][head], saved[1][head])
    assert training_info_of(context).algorithm.endswith("the score head alone")


def test_a_chat_template_of_the_configuration_travels_with_every_saved_copy(tmp_path: Path) -> None:
    context, _ = _train(tmp_path, chat_template=PLAIN)
    for copy in ("merged", "adapter"):
        assert AutoTokenizer.from_pretrained(context.output / copy).chat_template == PLAIN
    conversations, logged = logged_scores(context)
    scorer = RewardScorer.load(
        context.output / "merged", device="cpu", dtype=torch.float32, max_length=256, batch_size=4
    )
    assert scorer.score(conversations) == pytest.approx(logged, abs=1e-4)
    other = scorer.tokenizer.decode(scorer.tokenize(conversations[0]))
    assert other.startswith("user: What colour") and other.endswith("<|im_end|>")


def test_the_penalty_is_the_square_of_the_mean_score_and_centring_is_something_else() -> None:
    assert zero_sum_loss(torch.tensor([3.0, -1.0, -2.0, 0.0])).item() == 0
    assert zero_sum_loss(torch.tensor([3.0, 1.0])).item() == 4


def test_the_penalty_is_in_the_training_loss_and_not_in_the_one_that_chooses_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, torch.Tensor, torch.Tensor]] = []
    compute = PairTrainer.compute_loss

    def compute_loss(self: Any, model: Any, inputs: dict[str, Any], *arguments: Any, **rest: Any) -> Any:
        loss, outputs = compute(self, model, inputs, return_outputs=True)
        seen.append((self.model.training, loss.detach(), outputs.logits.detach().squeeze(-1)))
        return (loss, outputs) if rest.get("return_outputs") else loss

    monkeypatch.setattr(PairTrainer, "compute_loss", compute_loss)
    _train(tmp_path, zero_sum_penalty=5.0, center_rewards_coefficient=0.5)
    assert {training for training, _, _ in seen} == {True, False}
    for training, loss, scores in seen:
        chosen, rejected = scores.chunk(2)
        wanted = -torch.nn.functional.logsigmoid(chosen - rejected).mean() + 0.5 * (chosen + rejected).square().mean()
        wanted += 5.0 * scores.mean().square() if training else 0.0
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_mean_and_spread_of_the_scores_are_saved_with_each_copy_of_the_model(tmp_path: Path) -> None:
    context, values = _train(tmp_path)
    found = [
        ScoreStatistics.model_validate_json((context.output / copy / "score_statistics.json").read_bytes())
        for copy in ("merged", "adapter")
    ]
    assert found[0] == found[1]
    assert (found[0].mean, found[0].standard_deviation) == (values["score_mean"], values["score_std"])
    assert found[0].num_scores == 48
    samples = read_sample_predictions(context.output)
    scores = torch.tensor([score for item in samples for score in (item.score_chosen, item.score_rejected)])
    assert found[0].mean == pytest.approx(scores.double().mean().item(), abs=1e-6)
    assert found[0].standard_deviation == pytest.approx(scores.double().std(unbiased=False).item(), abs=1e-6)


def test_a_cosine_with_a_floor_ends_at_that_share_of_the_peak(tmp_path: Path) -> None:
    optimizer = OptimizerSettings(
        learning_rate=1e-3, scheduler="cosine_with_min_lr", minimum_learning_rate_fraction=0.25, warmup_fraction=0.25
    )
    context, _ = _train(tmp_path, optimizer=optimizer)
    history = json.loads((context.output / "trainer_state.json").read_text())["log_history"]
    rates = [entry["learning_rate"] for entry in history if "learning_rate" in entry]
    # One step of warm-up; logged is the rate that a step was made with.
    assert rates[:2] == [0.0, 1e-3]
    assert rates == pytest.approx([0.0, 1e-3, (0.25 + 0.75 * 0.75) * 1e-3, (0.25 + 0.75 * 0.25) * 1e-3])


class _Crash(BaseException):
    """Stands in for the end of a process: nothing catches it."""


@pytest.mark.parametrize(
    "options",
    [
        {"use_cls": True},
        {"trainable": "head", "lora": None},
        {"trainable": "full", "lora": None, "use_cls": True},
        {"zero_sum_penalty": 0.5, "chat_template": PLAIN, "use_margin": True},
        {"optimizer": OptimizerSettings(learning_rate=3e-3, scheduler="cosine_with_min_lr")},
    ],
    ids=lambda options: "+".join(options),
)
def test_a_resumed_training_ends_with_the_same_weights_bit_for_bit_with_every_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, Any]
) -> None:
    whole, _ = _train(tmp_path / "whole", **options)
    log = RecorderCallback.on_log

    def on_log(self: Any, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == 3:
            raise _Crash
        log(self, args, state, control, **rest)

    context = reward_model_context(tmp_path / "broken", schedule=SHORT, **options)
    with monkeypatch.context() as patch:
        patch.setattr(RecorderCallback, "on_log", on_log)
        with pytest.raises(_Crash):
            train_reward_model.run(context)
    train_reward_model.run(context)
    assert training_info_of(context).resumed_from_step == 2
    assert merged_sha256(context.output) == merged_sha256(whole.output)


def test_the_certificate_finds_the_score_token_on_every_path(tmp_path: Path) -> None:
    trained, _ = _train(tmp_path, use_cls=True, chat_template=PLAIN)
    inputs = {"pairs": trained.input_path("pairs"), "reward_model": trained.output}
    config = EvaluateRewardModelConfig(max_length=256, num_bootstrap=100, num_edited_pairs=2)
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    values = values_of(evaluate_reward_model.run(context))
    logged = [
        side for item in read_sample_predictions(trained.output) for side in (item.score_chosen, item.score_rejected)
    ]
    assert values["score_mean"] == pytest.approx(sum(logged) / len(logged), abs=1e-4)
