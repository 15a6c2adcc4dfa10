"""A judge's word must come from what was written, and a judge that trained the policy must be found out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import Judge, LanguageModelJudge, OtherRewardModel, judge_contradictions
from containers.contracts.configs.parts.rewards import ExactTerm, LengthTerm, MathTerm, PythonTerm, RegexTerm
from containers.contracts.manifest import LineageEntry, Manifest
from containers.contracts.names import StageName
from containers.contracts.records import JudgeFigures, PolicyEvaluation
from containers.judges.base import Pair, Verdict
from containers.judges.figures import Judgement, all_figures
from containers.rewards.base import Answered
from containers.rollouts.generate import Completion
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.tiny_policy import evaluated_policy, save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

CONFIG = EvaluatePolicyConfig(
    max_prompts=None, max_prompt_length=64, max_completion_length=12, completions_per_prompt=4, batch_size=8
)
TEXTS = ["Hi", "Which one?", "What is red?", "No", "Why?"]
VOWELS = PythonTerm(
    name="vowels",
    file="vowels.py",
    code="def score(prompt, completion, answer, columns):\n    return completion.count('e')\n",
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    save_reward_model(folder / "reward_model" / "merged", seed=1)
    save_reward_model(folder / "other", seed=2)
    save_causal_model(folder / "policy" / "model", seed=4)
    return {
        "prompts": write_prompts(folder / "prompts", evaluation=TEXTS, evaluation_answers=["7"] * len(TEXTS)),
        "start_model": save_causal_model(folder / "start", seed=3),
        "policy": folder / "policy",
        "reward_model": folder / "reward_model",
        "judge_other": folder / "other",
    }


def judged(folder: Path, inputs: Mapping[str, Path], *judges: Judge, **changes: object) -> tuple[JudgeFigures, ...]:
    config = CONFIG.model_copy(update={"judges": judges, **changes})
    _, context = evaluated_policy(folder, config, inputs)
    text = (context.output / "policy_evaluation.json").read_text(encoding="utf-8")
    return PolicyEvaluation.model_validate_json(text).judges


def test_judges_compare_the_same_completions_each_by_its_own_rule(tmp_path: Path, inputs: dict[str, Path]) -> None:
    exact, other, vowels = judged(tmp_path, inputs, ExactTerm(), OtherRewardModel(name="other", path="other"), VOWELS)
    assert [figures.name for figures in (exact, other, vowels)] == ["exact", "other", "vowels"]
    assert all(figures.num_pairs == 20 and figures.counts for figures in (exact, other, vowels))
    assert exact.is_outcome and [metric.name for metric in exact.pass_at] == ["exact_pass_at_2", "exact_pass_at_4"]
    assert exact.win_rate is not None and (exact.num_ties, exact.win_rate.value) == (20, 0.5)
    assert other.shown.startswith("the reward model") and "no certificate" in other.shown
    assert other.difference is not None and other.policy is not None and other.reference is not None
    assert other.difference.value == pytest.approx(other.policy.value - other.reference.value)
    assert (vowels.shown, vowels.is_outcome, vowels.pass_at) == ("the function score of vowels.py", False, ())


def test_the_training_reward_model_is_found_under_another_name_and_in_other_weights(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    """Its very files are known by their digest; a copy whose backbone was changed by its score head."""
    changed = copytree(inputs["reward_model"] / "merged", tmp_path / "changed")
    weights = load_file(changed / "model.safetensors")
    weights = {name: value if name == "score.weight" else value + 0.01 for name, value in weights.items()}
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    (figures,) = judged(tmp_path, {**inputs, "judge_other": changed}, OtherRewardModel(name="other", path="x"))
    assert "the policy was trained to please by its score head, under another name" in figures.part_in_training
    assert not figures.counts
    (figures,) = judged(
        tmp_path / "dpo",
        {**inputs, "judge_other": changed},
        OtherRewardModel(name="other", path="x"),
        rewards_trained_it=False,
    )
    assert "learnt from the pairs that the policy learnt from" in figures.part_in_training


def test_a_reward_model_that_learnt_from_the_same_pairs_is_said_to(tmp_path: Path, inputs: dict[str, Path]) -> None:
    own = copytree(inputs["reward_model"], tmp_path / "own")
    other = tmp_path / "other"
    save_reward_model(other / "merged", seed=9)
    both = {**inputs, "reward_model": own, "judge_other": other}
    judge = OtherRewardModel(name="other", path="x")
    for name, of_other, is_shared in (("unknown", None, False), ("others", "2", False), ("same", "1", True)):
        for folder, digit in ((own, "1"), (other, of_other)):
            if digit is not None:
                (folder / "MANIFEST.json").write_text(_manifest(pairs=f"sha256:{digit * 64}"))
        (figures,) = judged(tmp_path / name, both, judge)
        assert ("learnt from the same pairs" in figures.shown) is is_shared


def _manifest(*, pairs: str) -> str:
    lineage = (LineageEntry(name="pairs", digest=pairs, origin="filter_dataset"),)
    return Manifest(
        stage=StageName.TRAIN_REWARD_MODEL,
        key="a" * 64,
        files=(),
        lineage=lineage,
        created_at="2026-01-01T00:00:00Z",
    ).model_dump_json()


def test_a_reward_of_the_training_is_no_independent_judge(tmp_path: Path, inputs: dict[str, Path]) -> None:
    rewards = (RegexTerm(pattern="e", name="has_e", weight=0.5), LengthTerm(target=(0, 4)))
    same, another = judged(
        tmp_path, inputs, RegexTerm(pattern="e", name="rule"), RegexTerm(pattern="o", name="another"), rewards=rewards
    )
    assert same.part_in_training == "it is one of the rewards that the policy was trained on"
    assert not another.part_in_training


def answered(text: str) -> Answered:
    return Answered(
        ({"role": "user", "content": "?"},), Completion((1,), (2,) * max(len(text), 1), text=text, ended=True)
    )


def figures_of(points: Sequence[float | None], *, prompts: Sequence[str] | None = None) -> JudgeFigures:
    pairs = [Pair(answered("a" * (place + 1)), answered("b" * 3)) for place in range(len(points))]
    verdicts = [Verdict(value, "" if value is not None else "it is broken") for value in points]
    ids = prompts or [str(place) for place in range(len(points))]
    (found,) = all_figures([Judgement(MathTerm(), verdicts, "shown", "")], pairs, ids, confidence=0.95)
    return found


def test_prompts_and_not_pairs_are_what_a_win_rate_is_sure_by() -> None:
    alone = figures_of([1.0] * 30 + [0.0] * 10)
    together = figures_of([1.0] * 30 + [0.0] * 10, prompts=[str(place // 10) for place in range(40)])
    assert alone.win_rate is not None and together.win_rate is not None
    assert alone.win_rate.value == together.win_rate.value == 0.75
    assert alone.win_rate.ci_low is not None and together.win_rate.ci_low is not None
    assert alone.win_rate.ci_low > 0.55 and together.win_rate.ci_low < 0.3
    assert (alone.p_value, together.p_value) == (pytest.approx(0.0022, abs=1e-4), pytest.approx(0.625))
    assert (together.num_pairs, together.num_prompts) == (40, 4)
    for figures, num_prompts in ((alone, 40), (together, 4)):
        at_equal = figures.length_controlled
        assert at_equal is not None and at_equal.ci_low is not None and at_equal.ci_high is not None
        assert (at_equal.count, at_equal.num_prompts) == (40, num_prompts)
        assert at_equal.ci_low < at_equal.value <= at_equal.ci_high


def test_pairs_that_it_cannot_tell_are_counted_and_too_many_make_it_no_judge() -> None:
    some = figures_of([1.0, None, 0.0, 1.0])
    assert (some.untold, some.num_prompts, some.problem) == ((("it is broken", 1),), 3, "")
    most = figures_of([1.0, None, None, None])
    assert "could not tell about 3 of 4 pairs, mostly since it is broken" in most.problem
    assert not most.counts
    none = figures_of([None, None])
    assert none.win_rate is None and not none.counts


def test_an_outcome_of_other_values_than_right_and_wrong_is_no_share() -> None:
    rule = PythonTerm(name="rule", file="rule.py", kind="outcome")
    pairs = [Pair(answered("a"), answered("b"))] * 3
    verdicts = [Verdict(1.0, values=(2.5, 0.0))] * 3
    (found,) = all_figures([Judgement(rule, verdicts, "shown", "")], pairs, ["0", "1", "2"], confidence=0.95)
    assert found.policy is not None
    assert (found.is_outcome, found.pass_at, found.policy.unit, found.policy.value) == (False, (), "score", 2.5)


def test_settings_of_training_and_equal_names_are_mistakes_of_judges() -> None:
    judges = (ExactTerm(weight=2.0), RegexTerm(pattern="e", name="exact", only_if="exact"), OtherRewardModel(name="x"))
    judges = (*judges, LanguageModelJudge(path="large", vllm_gpus=2))
    found = dict(judge_contradictions(judges))
    assert set(found) == {"judges.0.weight", "judges.1.name", "judges.1.only_if", "judges.2", "judges.3.vllm_gpus"}


def test_the_seed_of_torch_changes_no_verdict(tmp_path: Path, inputs: dict[str, Path]) -> None:
    torch.manual_seed(1)
    first = judged(tmp_path / "1", inputs, VOWELS)
    torch.manual_seed(2)
    assert judged(tmp_path / "2", inputs, VOWELS) == first
