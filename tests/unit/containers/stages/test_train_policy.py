"""RLOO that ends with exit code 0 may still have trained on NaN, on other scores, or from a half-used batch."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from containers.algorithms.policy_settings import resolve_policy_schedule
from containers.algorithms.policy_trainer import curve_metrics
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import StageName
from containers.contracts.records import TrainingInfo
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, DivergedError, StageError
from containers.rewards.reward_model import ModelReward
from containers.scoring.scorer import RewardScorer, score_head_sha256
from containers.stages import train_policy
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

CONFIG = TrainPolicyConfig(
    num_generations=4,
    max_prompt_length=64,
    max_completion_length=8,
    lora=LoraSettings(r=4, alpha=8),
    gradient_checkpointing=False,
    optimizer=OptimizerSettings(learning_rate=1e-3, scheduler="linear"),
    schedule=TrainingSchedule(max_steps=4, save_steps=2),
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    merged = save_reward_model(folder / "reward_model" / "merged")
    return {
        "certificate": write_certificate(folder / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(folder / "pairs", train=["Hi", "Which one?", "What is red?", "x" * 200, "No"]),
        "start_model": save_causal_model(folder / "start", seed=3),
        "reward_model": folder / "reward_model",
    }


def context_of(tmp_path: Path, inputs: Mapping[str, Path], **changes: Any) -> StageContext:
    return make_context(tmp_path, StageName.TRAIN_POLICY, CONFIG.model_copy(update=changes), inputs)


def curves(context: StageContext) -> list[dict[str, Any]]:
    lines = (context.output / "curves.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def weights(context: StageContext) -> dict[str, torch.Tensor]:
    return dict(load_file(context.output / "model" / "model.safetensors"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Path]) -> StageContext:
    context = context_of(tmp_path_factory.mktemp("trained"), inputs, missing_eos_penalty=0.5)
    metrics = {metric.name: metric for metric in train_policy.run(context)}
    assert metrics["num_steps"].value == 4
    assert {"reward_start", "reward_end", "kl_end", "completion_length_end"} <= set(metrics)
    return context


def test_the_merged_policy_loads_plainly_and_equals_base_plus_adapter(
    trained: StageContext, inputs: dict[str, Path]
) -> None:
    merged = AutoModelForCausalLM.from_pretrained(trained.output / "model")
    base = AutoModelForCausalLM.from_pretrained(inputs["start_model"])
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        start = base(ids).logits
        adapted = PeftModel.from_pretrained(base, trained.output / "adapter")(ids).logits
        assert torch.allclose(merged(ids).logits, adapted, atol=1e-5)
        assert not torch.allclose(start, adapted, atol=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(trained.output / "model")
    assert tokenizer.chat_template
    adapter = json.loads((trained.output / "adapter" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == "test/start_model"


def test_a_logged_completion_has_the_score_of_a_freshly_loaded_reward_model(
    trained: StageContext, inputs: dict[str, Path]
) -> None:
    rows = parquet.read_table(trained.output / "completions.parquet").to_pylist()
    scorer = RewardScorer.load(
        inputs["reward_model"] / "merged", device="cpu", dtype=torch.float32, max_length=512, batch_size=1
    )
    assert [row["step"] for row in rows] == [step for step in (1, 2, 3, 4) for _ in range(8)]
    assert any(row["ended"] for row in rows) or any(not row["ended"] for row in rows)
    for row in rows:
        score = scorer.score([[*row["prompt"], {"role": "assistant", "content": row["completion"]}]])[0]
        assert row["value_reward_model"] == pytest.approx(score, abs=1e-4)
        assert row["reward"] == pytest.approx(score - (0 if row["ended"] else 0.5), abs=1e-4)
        assert 1 <= row["num_tokens"] <= 8
    for start in range(0, len(rows), 4):
        siblings = rows[start : start + 4]
        assert len({row["prompt"][0]["content"] for row in siblings}) == 1
        assert sum(row["advantage"] for row in siblings) == pytest.approx(0, abs=1e-4)


def test_the_first_step_has_the_advantages_of_leave_one_out(trained: StageContext) -> None:
    """At step 1 policy and reference are equal: the KL is 0 and the reward alone decides."""
    rows = parquet.read_table(trained.output / "completions.parquet").to_pylist()[:4]
    rewards = [row["reward"] for row in rows]
    wanted = [reward - (sum(rewards) - reward) / 3 for reward in rewards]
    assert [row["advantage"] for row in rows] == pytest.approx(wanted, abs=1e-4)


def test_curves_have_clear_names_one_finite_point_a_step(trained: StageContext) -> None:
    points = [point for point in curves(trained) if "reward" in point["values"]]
    assert [point["step"] for point in points] == [1, 2, 3, 4]
    names = {
        "loss", "grad_norm", "learning_rate", "reward", "reward_std", "kl", "kl_per_token", "entropy",
        "completion_length", "ended_fraction", "identical_completions_fraction", "prompts_without_signal_fraction",
        "ratio_clipped_fraction",
        "step_time_s", "engine_idle_fraction",
        "value_reward_model", "value_reward_model_std", "value_reward_model_same_fraction",
    }  # fmt: skip
    for point in points:
        assert names <= set(point["values"])
        assert not any("/" in name for name in point["values"])
        assert "non_finite" not in point
        assert 0 < point["values"]["engine_idle_fraction"] < 1
    first = points[0]["values"]
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert any(abs(point["values"]["kl"]) > 1e-6 for point in points[1:])
    assert any(point["values"]["grad_norm"] > 0 for point in points)


def test_records_name_the_reward_model_and_the_prompts_left_out(trained: StageContext, inputs: dict[str, Path]) -> None:
    used = json.loads((trained.output / "reward_model_used.json").read_text())
    assert used == {"digest": "sha256:0", "score_head_sha256": score_head_sha256(inputs["reward_model"] / "merged")}
    info = TrainingInfo.model_validate_json((trained.output / "training_info.json").read_text())
    assert (info.num_steps, info.planned_steps, info.num_examples, info.examples_left_out) == (4, 4, 4, 1)
    assert 0 < info.trainable_parameters < info.total_parameters
    events = (trained.work / "events.jsonl").read_text()
    assert "1 of 5 prompts are left out: longer than 64 tokens" in events
    assert used["score_head_sha256"][:16] in events


def test_a_run_killed_after_its_last_checkpoint_is_finished_without_another_step(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    context = context_of(tmp_path / "run", inputs, schedule=TrainingSchedule(max_steps=4, save_steps=2))
    train_policy.run(context)
    weights = (context.output / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(context.output)
    context.output.mkdir()
    train_policy.run(context)
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_text())
    assert (info.resumed_from_step, info.num_steps) == (4, 4)
    assert (context.output / "model" / "model.safetensors").read_bytes() == weights


def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_weights_curves_and_completions(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    """Four prompts and two a step: step 3 begins the second pass, where TRL's own sampler would repeat the first."""
    schedule = TrainingSchedule(max_steps=6, save_steps=2, save_total_limit=4)
    whole = context_of(tmp_path / "whole", inputs, schedule=schedule)
    train_policy.run(whole)
    broken = context_of(tmp_path / "broken", inputs, schedule=schedule)
    train_policy.run(broken)
    shutil.rmtree(broken.checkpoints / "checkpoint-6")
    (broken.checkpoints / "checkpoint-4" / "optimizer.pt").write_bytes(b"half a file")
    shutil.rmtree(broken.output)
    broken.output.mkdir()
    train_policy.run(broken)

    info = TrainingInfo.model_validate_json((broken.output / "training_info.json").read_text())
    assert info.resumed_from_step == 2
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(broken)[name]), name
    first, second = (parquet.read_table(c.output / "completions.parquet").to_pylist() for c in (whole, broken))
    assert first == second
    rewards = [
        [(p["step"], p["values"]["reward"]) for p in curves(c) if "reward" in p["values"]] for c in (whole, broken)
    ]
    assert rewards[0] == rewards[1]
    assert len(rewards[0]) == 6


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "gspo", "cispo", "dr_grpo", "reinforce++"])
def test_every_algorithm_trains_and_its_kl_shows_where_it_has_one(
    tmp_path: Path, inputs: dict[str, Path], algorithm: str
) -> None:
    config = context_of(tmp_path, inputs, algorithm=algorithm, num_iterations=2)
    metrics = {metric.name: metric.value for metric in train_policy.run(config)}
    assert metrics["num_steps"] == 4
    assert ("kl_end" in metrics) is bool(POLICY_ALGORITHMS[algorithm].beta)
    points = [point["values"] for point in curves(config) if "ratio" in point["values"]]
    # The first update of a batch is by the policy that wrote it, the second by another one.
    assert points[0]["ratio"] == pytest.approx(1, abs=1e-5)
    assert points[3]["ratio"] != pytest.approx(1, abs=1e-5)


def test_a_step_is_filled_again_until_its_prompts_tell_something_and_a_resume_goes_on_with_the_next_ones(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions of `Which one?` all have one reward here."""
    real = ModelReward.scores

    def scores(self: ModelReward, conversations: Any) -> list[float]:
        pairs = zip(conversations, real(self, conversations), strict=True)
        return [0.0 if turns[0]["content"] == "Which one?" else score for turns, score in pairs]

    monkeypatch.setattr(ModelReward, "scores", scores)
    schedule = TrainingSchedule(max_steps=6, save_steps=2, save_total_limit=4)
    whole, broken = (
        context_of(tmp_path / name, inputs, algorithm="dapo", schedule=schedule) for name in ("whole", "broken")
    )
    for context in (whole, broken):
        train_policy.run(context)
    points = [point["values"] for point in curves(whole) if "rounds" in point["values"]]
    assert {point["rounds"] for point in points} == {1.0, 2.0}
    assert {point["prompts_without_signal_fraction"] for point in points} == {0.0, 0.5}
    rows = parquet.read_table(whole.output / "completions.parquet").to_pylist()
    assert not any(row["prompt"][0]["content"] == "Which one?" for row in rows)
    shutil.rmtree(broken.checkpoints / "checkpoint-6")
    shutil.rmtree(broken.output)
    broken.output.mkdir()
    train_policy.run(broken)
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(broken)[name]), name
    assert rows == parquet.read_table(broken.output / "completions.parquet").to_pylist()


def test_reinforce_plus_plus_trains_on_one_completion_of_each_prompt(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = context_of(tmp_path, inputs, algorithm="reinforce++", num_generations=1)
    train_policy.run(context)
    points = [point["values"] for point in curves(context) if "reward" in point["values"]]
    assert len(points) == 4 and all(point["grad_norm"] > 0 and point["reward_std"] > 0 for point in points)
    assert not any("prompts_without_signal_fraction" in point for point in points)


def test_a_step_that_is_not_full_after_ten_rounds_is_filled_with_prompts_that_teach_nothing(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that solves nearly every prompt goes on with the others; here one prompt a step tells something."""
    real, told = ModelReward.scores, [0]

    def scores(self: ModelReward, conversations: Any) -> list[float]:
        told[0] += 1
        tells = told[0] % 10 == 1
        pairs = zip(conversations, real(self, conversations), strict=True)
        first = conversations[0][0]["content"]
        return [score if tells and turns[0]["content"] == first else 0.0 for turns, score in pairs]

    monkeypatch.setattr(ModelReward, "scores", scores)
    context = context_of(tmp_path, inputs, algorithm="dapo", schedule=TrainingSchedule(max_steps=2, save_steps=2))
    train_policy.run(context)
    points = [point["values"] for point in curves(context) if "rounds" in point["values"]]
    assert [point["rounds"] for point in points] == [10.0, 10.0]
    assert all(point["grad_norm"] > 0 for point in points)
    rows = parquet.read_table(context.output / "completions.parquet").to_pylist()
    assert len(rows) == 16
    assert [sum(row["advantage"] != 0 for row in rows if row["step"] == step) > 0 for step in (1, 2)] == [True, True]
    assert all(row["advantage"] == 0 for row in rows if row["reward"] == 0 and row["prompt"] != rows[0]["prompt"])


def test_a_step_that_cannot_be_filled_ends_the_training_and_says_so(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelReward, "scores", lambda self, conversations: [0.0] * len(conversations))
    with pytest.raises(StageError, match=r"Step 1: 10 rounds of 2 prompts gave none.*parts\.refill to false"):
        train_policy.run(context_of(tmp_path, inputs, algorithm="dapo"))


def test_parts_that_contradict_each_other_are_refused_before_anything_is_loaded(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    parts = TrainPolicyConfig(parts={"loss_weights": "token"}).parts
    context = context_of(tmp_path, {**inputs, "start_model": tmp_path / "none"}, algorithm="gspo", parts=parts)
    with pytest.raises(BadConfigError, match=r"train_policy\.parts\.loss_weights: token would weigh"):
        train_policy.run(context)


def test_several_updates_per_rollout_train_on_its_completions_again(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = context_of(tmp_path, inputs, num_iterations=2)
    train_policy.run(context)
    rows = parquet.read_table(context.output / "completions.parquet").to_pylist()
    assert {row["step"] for row in rows} == {1, 3}


def test_a_whole_model_trains_against_a_frozen_copy_of_its_start(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = context_of(tmp_path, inputs, lora=None, schedule=TrainingSchedule(max_steps=3))
    train_policy.run(context)
    assert not (context.output / "adapter").exists()
    start = load_file(inputs["start_model"] / "model.safetensors")
    assert any(not torch.equal(start[name], tensor) for name, tensor in weights(context).items())
    kls = [point["values"]["kl"] for point in curves(context) if "kl" in point["values"]]
    assert kls[0] == pytest.approx(0, abs=1e-6)
    assert abs(kls[2]) > 1e-6


def test_training_without_kl_and_without_kept_completions_works(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = context_of(tmp_path, inputs, beta=0.0, num_logged_completions=0, schedule=TrainingSchedule(max_steps=1))
    metrics = {metric.name for metric in train_policy.run(context)}
    assert "kl_end" not in metrics
    assert parquet.read_table(context.output / "completions.parquet").num_rows == 0


def test_a_learning_rate_that_explodes_is_a_failure_that_names_the_step(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    optimizer = OptimizerSettings(learning_rate=1e12, weight_decay=1e12, scheduler="constant", warmup_fraction=0)
    context = context_of(tmp_path, inputs, optimizer=optimizer)
    with pytest.raises(DivergedError, match=r"[Ss]tep [234]\b"):
        train_policy.run(context)
    assert not (context.output / "model").exists()


def test_lengths_beyond_the_positions_of_the_model_are_refused(tmp_path: Path, inputs: dict[str, Path]) -> None:
    with pytest.raises(BadConfigError, match=r"64 \+ max_completion_length 449 = 513 tokens.*512 positions"):
        train_policy.run(context_of(tmp_path, inputs, max_completion_length=449))


@pytest.mark.parametrize("num_fitting", [0, 1])
def test_a_policy_that_could_not_be_judged_is_not_trained(
    tmp_path: Path, inputs: dict[str, Path], num_fitting: int
) -> None:
    judged_on = ["Hi"] * num_fitting + ["x" * 200, "y" * 300]
    pairs = write_prompts(tmp_path / "pairs", train=["Hi", "Which one?"], evaluation=judged_on)
    nothing = tmp_path / "no model"
    context = context_of(tmp_path, {**inputs, "prompts": pairs, "reward_model": nothing})
    with pytest.raises(BadDataError) as caught:
        train_policy.run(context)
    assert (
        f"policy_eval_prompts.parquet has {len(judged_on)} prompts to judge the policy on, of which {num_fitting} fit "
        f"in train_policy.max_prompt_length 64; at least 2 must."
    ) in str(caught.value)
    assert not list(context.checkpoints.iterdir())


def test_a_rollout_without_whole_minibatches_is_refused_with_the_sizes_that_work() -> None:
    config = CONFIG.model_copy(update={"rollout_batch_size": 20})
    with pytest.raises(BadConfigError, match=r"rollout_batch_size 20 is no multiple of global_batch_size 8.*16 or 24"):
        resolve_policy_schedule(config, num_prompts=10, global_batch_size=8)


def test_a_schedule_that_would_never_save_is_refused_with_the_numbers() -> None:
    config = CONFIG.model_copy(update={"schedule": TrainingSchedule(max_steps=None, save_steps=200)})
    with pytest.raises(BadConfigError, match="save_steps 200 would never save: the run has 5 steps"):
        resolve_policy_schedule(config, num_prompts=10, global_batch_size=8)


def test_start_and_end_of_a_curve_are_the_means_of_its_first_and_last_tenth() -> None:
    history: list[dict[str, float]] = [{"step": n, "reward": float(n), "kl": n / 10} for n in range(1, 21)]
    metrics = {metric.name: metric for metric in curve_metrics([*history, {"train_loss": 0.1}], num_steps=20)}
    assert (metrics["reward_start"].value, metrics["reward_start"].count) == (1.5, 2)
    assert (metrics["reward_end"].value, metrics["reward_end"].count) == (19.5, 2)
    assert metrics["kl_end"].value == pytest.approx(1.95)
    assert "completion_length_end" not in metrics
