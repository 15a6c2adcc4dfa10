"""A person who reads the first screen must know whether the policy is better, and by whose word."""

from pathlib import Path

import pytest

from containers.contracts.names import POLICY_EVALUATION_FILE, StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures
from containers.report.inputs import load_report_inputs
from containers.report.run_page import run_page
from containers.report.verdict import headline_cards, run_verdict
from tests.unit.factories.report.report_factory import MadeRun, make_run
from tests.unit.factories.report.report_records import policy_evaluation


def share(name: str, value: float) -> Metric:
    return Metric(name=name, value=value, unit="fraction", ci_low=value - 0.1, ci_high=value + 0.1, count=40)


GOLD = JudgeFigures(
    name="gold",
    type="python",
    shown="the function `score`",
    num_pairs=40,
    num_prompts=10,
    num_wins=24,
    num_ties=8,
    num_losses=8,
    win_rate=share("gold_win_rate", 0.7),
    length_controlled=Metric(name="x", value=0.66, unit="fraction", ci_low=0.47, ci_high=0.81, count=40),
    p_value=0.004,
    p_adjusted=0.008,
    is_outcome=True,
    policy=share("gold_policy", 0.62),
    reference=share("gold_reference", 0.31),
    pass_at=(share("gold_pass_at_2", 0.81),),
    reference_pass_at=(share("gold_reference_pass_at_2", 0.45),),
)
TRAINED = GOLD.model_copy(
    update={"name": "same", "part_in_training": "it is the reward model that the policy was trained to please"}
)
UNSURE = GOLD.model_copy(update={"name": "unsure", "untold": (("no reference answer", 3),)})


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return make_run(tmp_path, curves=False)


def with_judges(made: MadeRun, *judges: JudgeFigures) -> MadeRun:
    path = made.folder(StageName.EVALUATE_POLICY) / POLICY_EVALUATION_FILE
    path.write_text(policy_evaluation().model_copy(update={"judges": judges}).model_dump_json(), encoding="utf-8")
    return made


def page(made: MadeRun) -> str:
    return str(run_page(load_report_inputs(made.context()), title="Report", num_samples=2))


def test_the_headline_is_good_only_by_the_word_of_an_independent_judge(made: MadeRun) -> None:
    banner = run_verdict(load_report_inputs(with_judges(made, GOLD).context()))
    assert banner.tone == "good"
    assert banner.headline == "The policy is better than its reference, by the word of gold, and all gates passed."
    assert banner.details[0] == "gold took no part in training."
    banner = run_verdict(load_report_inputs(with_judges(made, TRAINED).context()))
    assert (banner.tone, banner.headline) == ("plain", "No independent judge has judged the policy.")


def test_the_first_figures_are_those_of_independent_judges(made: MadeRun) -> None:
    labels = [card.label for card in headline_cards(load_report_inputs(with_judges(made, GOLD, TRAINED).context()))]
    assert "Win rate by gold, independent" in labels and "Win rate by same, independent" not in labels
    assert labels.index("Win rate by gold, independent") < labels.index("Reward gain over the reference")


def test_the_page_says_who_judged_and_what_each_had_to_do_with_the_training(made: MadeRun) -> None:
    text = page(with_judges(made, GOLD, TRAINED, UNSURE))
    assert "gold: the function `score`. It took no part in training." in text
    assert "It is no independent judge: it is the reward model that the policy was trained to please." in text
    assert "unsure could not tell about 3 of 40 pairs (3: no reference answer)." in text
    assert "24, 8, 8" in text and "for all judges" in text
    assert "gold, 2 completions" in text and "81.0 %" in text and "45.0 %" in text


def test_the_caveat_about_the_rewards_goes_where_an_independent_judge_has_judged(made: MadeRun) -> None:
    caveat = "The judge here is"
    assert caveat in page(with_judges(made, TRAINED))
    assert caveat not in page(with_judges(made, GOLD))


def test_the_win_rate_at_equal_lengths_has_its_interval_beside_it(made: MadeRun) -> None:
    assert "47.0 to 81.0 %" in page(with_judges(made, GOLD))
