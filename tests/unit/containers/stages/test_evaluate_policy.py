"""These figures decide whether a policy counts as better; a model compared with itself must come out as no better."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from transformers import AutoModelForCausalLM

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.rewards import ExactTerm, LengthTerm, RegexTerm
from containers.contracts.records import PolicyEvaluation
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError
from containers.rollouts.comparison import ComparedPrompt, compare_policies
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.tiny_policy import evaluated_policy, save_causal_model, save_reward_model, tiny_tokenizer

pytestmark = pytest.mark.stages

CONFIG = EvaluatePolicyConfig(
    max_prompts=None,
    max_prompt_length=64,
    max_completion_length=12,
    completions_per_prompt=2,
    batch_size=5,
    num_samples=3,
)
TEXTS = ["Hi", "Which one?", "What is red?", "x" * 200, "No", "Tell me more about jade.", "Why?"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    save_reward_model(folder / "reward_model" / "merged")
    save_causal_model(folder / "policy" / "model", seed=4)
    return {
        "prompts": write_prompts(folder / "pairs", evaluation=TEXTS),
        "start_model": save_causal_model(folder / "start", seed=3),
        "policy": folder / "policy",
        "reward_model": folder / "reward_model",
    }


def evaluate(tmp_path: Path, inputs: Mapping[str, Path], **changes: Any) -> tuple[StageContext, PolicyEvaluation]:
    _, context = evaluated_policy(tmp_path, CONFIG.model_copy(update=changes), inputs)
    text = (context.output / "policy_evaluation.json").read_text()
    return context, PolicyEvaluation.model_validate_json(text)


def completions_of(context: StageContext) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(context.output / "completions.parquet").to_pylist()
    return rows


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Path]) -> tuple[StageContext, PolicyEvaluation]:
    return evaluate(tmp_path_factory.mktemp("judged"), inputs)


def test_a_policy_that_is_its_reference_differs_by_exactly_nothing(tmp_path: Path, inputs: dict[str, Path]) -> None:
    save_causal_model(tmp_path / "same" / "model", seed=3)
    context, evaluation = evaluate(tmp_path, {**inputs, "policy": tmp_path / "same"})
    assert evaluation.reward_difference.value == 0
    assert (evaluation.reward_difference.ci_low, evaluation.reward_difference.ci_high) == (0, 0)
    assert evaluation.win_rate.value == 0.5
    assert evaluation.kl.value == pytest.approx(0, abs=1e-6)
    assert evaluation.identical_completions is not None
    assert (evaluation.identical_completions.value, evaluation.identical_completions.count) == (1, 12)
    assert {sample.winner for sample in evaluation.samples} == {"tie"}
    rows = completions_of(context)
    assert all(row["policy"] == row["reference"] for row in rows)
    assert any(row["policy"] for row in rows)


def test_rewards_are_the_scores_of_a_freshly_loaded_reward_model(
    judged: tuple[StageContext, PolicyEvaluation], inputs: dict[str, Path]
) -> None:
    scorer = RewardScorer.load(
        inputs["reward_model"] / "merged", device="cpu", dtype=torch.float32, max_length=512, batch_size=1
    )
    rows = completions_of(judged[0])
    assert len(rows) == 12
    for row in rows:
        for side in ("policy", "reference"):
            score = scorer.score([[*row["prompt"], {"role": "assistant", "content": row[side]}]])[0]
            assert row[f"reward_{side}"] == pytest.approx(score, abs=1e-4)
    differences = [row["reward_policy"] - row["reward_reference"] for row in rows]
    assert judged[1].reward_difference.value == pytest.approx(sum(differences) / len(differences))
    assert judged[1].reward_policy.value - judged[1].reward_reference.value == pytest.approx(
        judged[1].reward_difference.value
    )


def test_the_kl_is_the_mean_log_ratio_by_plain_forwards_of_both_models(tmp_path: Path, inputs: dict[str, Path]) -> None:
    """Short ASCII completions come back from their text, so that nothing of the stage's own code is needed."""
    context, evaluation = evaluate(tmp_path, inputs, max_completion_length=2, completions_per_prompt=8)
    tokenizer = tiny_tokenizer()
    models = [
        AutoModelForCausalLM.from_pretrained(path) for path in (inputs["policy"] / "model", inputs["start_model"])
    ]
    rows = completions_of(context)
    checked = 0
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=True)["input_ids"]
        tail = tokenizer(row["policy"], add_special_tokens=False)["input_ids"]
        tail += [tokenizer.eos_token_id] if row["ended_policy"] else []
        if len(tail) != row["num_tokens_policy"] or "�" in row["policy"]:
            continue
        totals = []
        for model in models:
            with torch.no_grad():
                logprobs = model(torch.tensor([prompt + tail])).logits[0].log_softmax(-1)
            totals.append(sum(float(logprobs[len(prompt) + i - 1, token]) for i, token in enumerate(tail)))
        assert row["log_ratio"] == pytest.approx(totals[0] - totals[1], abs=1e-3)
        checked += 1
    assert checked >= 5
    assert evaluation.kl.value == pytest.approx(sum(row["log_ratio"] for row in rows) / len(rows))
    assert evaluation.kl.value > 0


def test_the_same_seed_repeats_every_figure(
    tmp_path: Path, judged: tuple[StageContext, PolicyEvaluation], inputs: dict[str, Path]
) -> None:
    context, again = evaluate(tmp_path, inputs)
    assert again == judged[1]
    assert completions_of(context) == completions_of(judged[0])


def test_greedy_completions_of_one_prompt_are_all_alike(tmp_path: Path, inputs: dict[str, Path]) -> None:
    rows = completions_of(evaluate(tmp_path, inputs, temperature=0.0)[0])
    assert len(rows) == 12
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first["prompt_id"] == second["prompt_id"]
        assert first["policy"] == second["policy"]


def test_prompts_that_are_too_long_are_counted_and_a_subset_is_drawn(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context, evaluation = evaluate(tmp_path, inputs, max_prompts=4, completions_per_prompt=1)
    assert evaluation.num_prompts == 4
    assert len(completions_of(context)) == 4
    assert "4 of 6 held-out prompts are answered. 1 of 7 prompts are left out: longer than 64 tokens" in (
        context.work.parent / "sample_completions" / "events.jsonl"
    ).read_text(encoding="utf-8")


def test_a_single_prompt_that_fits_is_refused_for_its_interval_would_have_no_width(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    pairs = write_prompts(tmp_path / "pairs", evaluation=["Hi", "x" * 200])
    with pytest.raises(BadDataError, match=r"of which 1 fit in evaluate_policy\.max_prompt_length 64; at least 2 must"):
        evaluate(tmp_path, {**inputs, "prompts": pairs})


def test_empty_completions_are_scored_and_counted(tmp_path: Path, inputs: dict[str, Path]) -> None:
    """A policy whose every first token ends the turn."""
    folder = save_causal_model(tmp_path / "silent" / "model", seed=4)
    config = json.loads((folder / "generation_config.json").read_text())
    config["eos_token_id"] = list(range(len(tiny_tokenizer())))
    (folder / "generation_config.json").write_text(json.dumps(config))
    sampled, context = evaluated_policy(tmp_path, CONFIG, {**inputs, "policy": tmp_path / "silent"})
    evaluation = PolicyEvaluation.model_validate_json((context.output / "policy_evaluation.json").read_text())
    rows = completions_of(context)
    assert {row["num_tokens_policy"] for row in rows} == {1}
    empty = sum(not row["policy"].strip() for row in rows)
    noted = f"{empty} of 12 completions of the policy are empty" in (sampled.work / "events.jsonl").read_text()
    assert noted == (empty > 0)
    assert evaluation.ended_policy.value == 1
    assert evaluation.length_policy.value == 1


def test_lengths_beyond_the_positions_of_the_model_are_refused(tmp_path: Path, inputs: dict[str, Path]) -> None:
    with pytest.raises(BadConfigError, match="513 tokens; the policy has 512 positions"):
        evaluate(tmp_path, inputs, max_completion_length=449)


def test_plots_are_pictures(judged: tuple[StageContext, PolicyEvaluation]) -> None:
    plots = sorted((judged[0].output / "plots").glob("*.png"))
    assert [path.name for path in plots] == [
        "kl_and_reward.png",
        "lengths.png",
        "reward_differences.png",
        "rewards.png",
    ]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in plots)


def compared(number: int, policy: tuple[float, ...], reference: tuple[float, ...]) -> ComparedPrompt:
    def written(name: str, count: int) -> tuple[Completion, ...]:
        return tuple(
            Completion(prompt_ids=(1,), completion_ids=(2,) * (k + 1), text=f"{name} {number}", ended=k == 0)
            for k in range(count)
        )

    return ComparedPrompt(
        prompt=PolicyPrompt(f"p{number}", "general", ({"role": "user", "content": "?"},), (1,)),
        policy=written("policy", len(policy)),
        reference=written("reference", len(reference)),
        rewards_policy=policy,
        rewards_reference=reference,
        log_ratios=(0.5,) * len(policy),
    )


def test_ties_count_half_and_every_pair_of_completions_counts() -> None:
    assert compared(0, (1.0, 3.0), (2.0, 3.0)).win_rate == 0.375
    assert compared(0, (1.0,), (1.0,)).win_rate == 0.5
    assert compared(0, (2.0, 2.0), (1.0, 0.0)).win_rate == 1.0


@pytest.mark.parametrize(
    ("difference", "winner"), [(9e-5, "tie"), (-9e-5, "tie"), (2e-4, "policy"), (-2e-4, "reference")]
)
def test_rewards_that_rounding_alone_can_part_are_a_tie(difference: float, winner: str) -> None:
    assert compared(0, (0.5 + difference,), (0.5,)).winner(0, 0) == winner


def test_the_same_text_is_a_tie_whatever_bfloat16_makes_of_its_reward() -> None:
    prompt = compared(0, (1.02,), (1.0,))
    same = replace(prompt, reference=prompt.policy)
    assert (prompt.winner(0, 0), same.winner(0, 0)) == ("policy", "tie")
    assert (prompt.identical, same.identical) == ((False,), (True,))
    found = compare_policies([prompt, same], confidence=0.95, num_samples=2)
    assert found.identical_completions is not None
    assert (found.identical_completions.value, found.identical_completions.count) == (0.5, 2)
    assert found.win_rate.value == 0.75
    assert sorted(sample.winner for sample in found.samples) == ["policy", "tie"]


def test_without_a_reward_model_the_rewards_of_the_training_judge_each_by_itself(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    answered = {
        "prompts": write_prompts(tmp_path / "prompts", evaluation=TEXTS, evaluation_answers=["7"] * len(TEXTS)),
        **{name: inputs[name] for name in ("start_model", "policy")},
    }
    rewards = (ExactTerm(), RegexTerm(pattern="e", name="has_e"), LengthTerm(target=(0, 4), weight=0.5))
    context, evaluation = evaluate(tmp_path, answered, rewards=rewards)
    rows = completions_of(context)
    assert [term.name for term in evaluation.terms] == ["exact", "has_e", "length"]
    assert [term.is_outcome for term in evaluation.terms] == [True, False, False]
    for row in rows:
        for side in ("policy", "reference"):
            values, text = row[f"values_{side}"], row[side]
            assert values["has_e"] == ("e" in text)
            assert values["exact"] == (text.strip() == "7")
            wanted = values["exact"] + values["has_e"] + 0.5 * values["length"]
            assert row[f"reward_{side}"] == pytest.approx(wanted)
    of_e = evaluation.terms[1]
    assert of_e.policy.value == pytest.approx(sum("e" in row["policy"] for row in rows) / len(rows))
    assert of_e.difference.value == pytest.approx(of_e.policy.value - of_e.reference.value)
    outcome = evaluation.terms[0].policy
    assert (outcome.unit, outcome.count) == ("fraction", 6) and outcome.ci_high is not None


def test_the_interval_is_over_prompts_and_covers_a_known_mean() -> None:
    rng = random.Random(3)  # noqa: S311
    prompts = [compared(n, (rng.gauss(0.4, 1.0),) * 2, (0.0, 0.0)) for n in range(400)]
    found = compare_policies(prompts, confidence=0.95, num_samples=5)
    low, high = found.reward_difference.ci_low, found.reward_difference.ci_high
    assert low is not None and high is not None
    assert low < 0.4 < high
    # 1.96 standard errors of 400 prompts on each side; as if siblings were independent, it would be 0.139.
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.15)
    assert found.reward_difference.count == 400
    assert found.length_policy.value == 1.5
    assert found.ended_policy.value == 0.5


def test_samples_spread_from_the_largest_loss_to_the_largest_gain() -> None:
    prompts = [compared(n, (float(n),), (4.0,)) for n in (5, 0, 8, 2, 6, 1, 7, 3, 4)]
    found = compare_policies(prompts, confidence=0.95, num_samples=3)
    assert [sample.reward_policy for sample in found.samples] == [0, 4, 8]
    assert not compare_policies(prompts, confidence=0.95, num_samples=0).samples
