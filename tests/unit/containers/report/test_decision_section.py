"""What a decision shows: the sentence, the table behind it, what was left out; foreign words cannot break the page."""

from containers.contracts.champions import Comparison, RunDecision
from containers.document.markdown import markdown
from containers.report.champions import contest_text, decision_section, points
from tasks.config.retrain import judgement
from tests.unit.factories.champion_factory import MADE_AT, contest


def decision(text: str, comparison: Comparison | None = None) -> RunDecision:
    return RunDecision(
        model="demo-reward-model", model_kind="reward_model", at=MADE_AT, kind="lost", text=text, comparison=comparison
    )


def test_the_table_has_every_figure_that_decided() -> None:
    frozen = contest(64, 33, both=287).model_copy(update={"seen_in_training": 5})
    safety = contest(0, 12, both=88, name="safety", budget=0.01)
    comparison = Comparison(champion=1, challenger=2, contests=(frozen, safety), confidence=0.95, alpha=0.05)
    text = markdown(decision_section(decision(judgement(comparison), comparison)))
    assert text.startswith("## demo-reward-model: champion stays\n\nVersion 1 stays champion: version 2 is better on")
    assert "| the frozen pairs (accuracy) | 384 pairs (384 prompts) | 91.4 % | 83.3 % | +8.1 |" in text
    assert "1.0 points — fell further" in text
    assert (
        "Left out for both, of the frozen pairs: 5 whose prompt, or one like it, one of the two was trained on." in text
    )
    assert "must not fall on the others beyond its budget and beyond chance" in text
    assert "| 1.0 points — fell further | −17.5 | −6.5 | 9.4 points |" in text
    assert "is the lower end, one-sided at 0.05 for each suite by itself: larger falls are ruled out" in text
    assert "that such data rule out" not in text


def test_where_a_fall_is_to_be_ruled_out_the_table_says_what_such_data_rule_out() -> None:
    safety = contest(3, 3, both=994, name="safety", budget=0.01, must_rule_out=True)
    comparison = Comparison(champion=1, challenger=2, contests=(contest(9, 1), safety), confidence=0.95, alpha=0.05)
    text = markdown(decision_section(decision("better", comparison)))
    assert "points (ruled out) |" in text
    assert "the smallest budget that such data rule out in 80 % of cases where both models are equal" in text


def test_a_line_of_figures_counts_pairs_and_prompts_and_names_both() -> None:
    pairs = contest(64, 33, both=287).model_copy(update={"num_prompts": 48})
    assert "(384 pairs of 48 prompts)" in contest_text(pairs)
    assert "(384 items of 48 prompts)" in contest_text(pairs.model_copy(update={"measure": "score"}))
    assert "(1 pair of 1 prompt)" in contest_text(contest(1, 0))
    assert "(384 prompts)" in contest_text(contest(64, 33, both=287).model_copy(update={"measure": "win rate"}))


def test_a_comparison_on_one_set_names_no_others() -> None:
    comparison = Comparison(champion=1, challenger=2, contests=(contest(9, 1),), confidence=0.95, alpha=0.05)
    assert "others" not in markdown(decision_section(decision("better", comparison)))


def test_words_of_people_stay_words() -> None:
    assert "<script>" not in markdown(decision_section(decision("<script>alert(1)</script> | [x](y)")))


def test_points_have_a_true_minus_and_a_sign_and_zero_has_none() -> None:
    assert [points(share) for share in (-0.0123, 0.05, 0.0001, None)] == ["−1.2", "+5.0", "0.0", "—"]
