"""A language model that likes the first answer, or writes nonsense, must not decide about a policy."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judge_question import judge_question, judge_version
from containers.contracts.configs.parts.judges import LanguageModelJudge
from containers.contracts.records import PolicyEvaluation
from containers.judges import language_model as module
from containers.judges.base import Pair
from containers.judges.language_model import LanguageModel, PlainLetters, letters_of
from containers.judges.orders import Chosen, places_of, verdict_of
from containers.models.loading import load_causal_model
from containers.rewards.base import Answered
from containers.rollouts.generate import Completion
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.tiny_policy import evaluated_policy, save_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

FIRST, SECOND, TIE, UNREAD = Chosen("first"), Chosen("second"), Chosen("tie"), Chosen(None, "it is broken")
JUDGE = LanguageModelJudge(path="judge")


def answered(text: str) -> Answered:
    return Answered(({"role": "user", "content": "Which?"},), Completion((1,), (2,), text=text, ended=True))


def pairs(count: int) -> list[Pair]:
    return [Pair(answered(f"policy {place}"), answered(f"reference {place}")) for place in range(count)]


@pytest.mark.parametrize(
    ("policy_first", "reference_first", "points"),
    [
        (FIRST, SECOND, 1.0),
        (SECOND, FIRST, 0.0),
        (FIRST, FIRST, 0.5),
        (SECOND, SECOND, 0.5),
        (TIE, TIE, 0.5),
        (FIRST, TIE, 0.5),
        (UNREAD, SECOND, None),
        (FIRST, UNREAD, None),
    ],
)
def test_an_answer_is_better_only_if_it_is_chosen_in_both_orders(
    policy_first: Chosen, reference_first: Chosen, points: float | None
) -> None:
    found = verdict_of(policy_first, reference_first)
    assert (found.points, bool(found.reason)) == (points, points is None)


def test_a_judge_of_places_is_known_by_its_choices() -> None:
    always_first = places_of([(FIRST, FIRST)] * 10)
    assert (always_first.first_share, always_first.agreement) == (1.0, 0.0)
    assert "chose the first answer in 100 % of its choices" in always_first.problem
    assert "second answer" in places_of([(SECOND, SECOND)] * 10).problem
    fair = places_of([(FIRST, SECOND), (SECOND, FIRST)] * 5)
    assert (fair.first_share, fair.agreement, fair.problem) == (0.5, 1.0, "")
    assert places_of([(FIRST, FIRST)] * 3).problem == "", "six choices say nothing"
    assert places_of([]).first_share == 0.5


def test_the_question_has_both_answers_in_order_and_a_version_of_its_own() -> None:
    (pair,) = pairs(1)
    turns = pair.policy.conversation
    first, second = (judge_question(turns, *answers, criteria="Be kind.") for answers in pair.in_both_orders)
    assert first.index("policy 0") < first.index("reference 0") and second.index("reference 0") < second.index(
        "policy 0"
    )
    assert "Be kind." in first and "user: Which?" in first
    assert judge_version("Be kind.") != judge_version("Be brief.")


class Likes:
    """Stands for the model: probabilities of the letters of one question after another."""

    longest = 10_000

    def __init__(self, *chances: tuple[float, float]) -> None:
        self.given = iter(chances)

    def chances(self, questions: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        return [next(self.given) for _ in questions]

    def close(self) -> None:
        raise AssertionError("It was closed before it had judged.")


def test_letters_are_compared_and_little_probability_on_them_is_no_choice() -> None:
    assert [module._choice(*chances) for chances in ((0.6, 0.3), (0.2, 0.7), (0.45, 0.45))] == [FIRST, SECOND, TIE]
    assert module._choice(0.2, 0.1).reason == "it would write something else than A or B"


def test_random_weights_write_no_letter_and_so_judge_nothing(tmp_path: Path) -> None:
    """The whole stage with a model that knows nothing: it is told, counted, and decides nothing."""
    policy = save_causal_model(tmp_path / "policy" / "model", seed=4).parent
    inputs = {
        "prompts": write_prompts(tmp_path / "prompts", evaluation=["Hi", "Which one?", "No"]),
        "start_model": save_causal_model(tmp_path / "start", seed=3),
        "policy": policy,
        "judge_language_model": save_causal_model(tmp_path / "judge", seed=1),
    }
    config = EvaluatePolicyConfig.model_validate(
        {
            "max_prompts": None,
            "max_prompt_length": 64,
            "max_completion_length": 8,
            "rewards": [{"type": "length", "target": [0, 9]}],
            "judges": [{"type": "language_model", "path": "judge"}],
        }
    )
    _, context = evaluated_policy(tmp_path / "run", config, inputs)
    text = (context.output / "policy_evaluation.json").read_text(encoding="utf-8")
    (figures,) = PolicyEvaluation.model_validate_json(text).judges
    assert not figures.counts and "could not tell about 3 of 3 pairs" in figures.problem
    assert "it would write something else than A or B" in figures.problem


def test_the_next_letter_is_that_of_a_plain_forward(tmp_path: Path) -> None:
    """Batches of questions of other lengths, padded on the right."""
    tokenizer, folder = tiny_tokenizer(), save_causal_model(tmp_path / "judge", seed=1)
    model = load_causal_model(folder, dtype=torch.float32, device=torch.device("cpu"))
    texts = ("A longer question, or so", "B?", "Why", "Which")
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    found = PlainLetters(model, letters_of(tokenizer), pad_id=0, batch_size=3).chances(ids)
    for tokens, (first, second) in zip(ids, found, strict=True):
        with torch.no_grad():
            chances = model(torch.tensor([tokens])).logits[0, -1].softmax(-1)
        letters = [tokenizer(letter, add_special_tokens=False).input_ids[0] for letter in "AB"]
        assert [first, second] == pytest.approx([float(chances[letter]) for letter in letters], rel=1e-4)


def test_equal_texts_are_ties_that_no_model_is_asked_about() -> None:
    # The pair with the policy first, then with the reference first.
    judge = LanguageModel(Likes((0.8, 0.1), (0.1, 0.8)), tiny_tokenizer(), JUDGE, origin="here", part="")
    same = Pair(answered("the same"), answered("the same"))
    found = judge.verdicts([same, *pairs(1), same])
    assert [verdict.points for verdict in found] == [0.5, 1.0, 0.5]
    places = judge.places()
    assert places is not None and (places.num_choices, places.agreement) == (2, 1.0)
