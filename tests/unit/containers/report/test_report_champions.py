"""The report of a retraining tells first what became of the champion, with the figures; no other report does."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from containers.contracts.champions import Comparison, Contest, RunDecision, RunDecisions
from containers.contracts.names import REPORT_HTML_FILE, REPORT_MARKDOWN_FILE, StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import GateVerdict
from containers.contracts.spec import StageInput
from containers.stages import write_report
from tests.unit.factories.report.report_factory import MadeRun, make_run, stage_record, that_ends_with, with_stages
from tests.unit.factories.report.report_page_factory import ATTACK, Page
from tests.unit.factories.report.report_records import gate

MODEL = "demo-reward-model"
LAST = StageName.EVALUATE_REWARD_MODEL


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return make_run(tmp_path, curves=False)


def contest(name: str, value: float, *, budget: float | None = None) -> Contest:
    found = Metric(
        name="difference", value=value, unit="fraction", count=384, ci_low=value - 0.03, ci_high=value + 0.03
    )
    return Contest(
        name=name,
        measure="accuracy",
        count=384,
        num_prompts=48,
        champion=0.833,
        challenger=0.833 + value,
        difference=found,
        num_better=64,
        num_worse=33,
        p_value=0.0021,
        detectable=0.071,
        budget=budget,
        at_most=None if budget is None else 0.02,
        at_least=None if budget is None else -0.026,
    )


def decided(**changes: object) -> RunDecision:
    """That version 2 won against version 1."""
    contests = (contest("the frozen pairs", 0.081), contest("safety", -0.005, budget=0.01))
    return RunDecision.model_validate(
        {
            "model": MODEL,
            "model_kind": "reward_model",
            "at": "2026-11-21T11:40:00+00:00",
            "kind": "won",
            "text": "version 2 is champion now: it is better than version 1 beyond chance.",
            "challenger": 2,
            "champion_before": 1,
            "champion_after": 2,
            "comparison": Comparison(champion=1, challenger=2, contests=contests, confidence=0.95, alpha=0.05),
            "registry": f"The alias “champion” of {MODEL} in MLflow was moved from version 1 to version 2.",
            **changes,
        }
    )


def report(made: MadeRun, content: str, *, verdict: GateVerdict | None = None, stopped: str = "") -> tuple[Page, str]:
    """Page and Markdown of a retraining of the reward model whose decisions stand in a file of that content."""
    path = made.root / "decisions.json"
    path.write_text(content, encoding="utf-8")
    pipeline = that_ends_with(made.pipeline, LAST)
    changes = {"gates": (verdict or gate("reward_model"),), "stopped_because": stopped}
    context = made.context(pipeline=pipeline.model_copy(update=changes))
    decisions = StageInput(name="decisions", path=str(path), digest="sha256:0")
    context = replace(context, spec=context.spec.model_copy(update={"inputs": (*context.spec.inputs, decisions)}))
    write_report.run(context)
    page = Page((context.output / REPORT_HTML_FILE).read_text(encoding="utf-8"))
    return page, (context.output / REPORT_MARKDOWN_FILE).read_text(encoding="utf-8")


def written(*decisions: RunDecision) -> str:
    return RunDecisions(decisions=decisions).model_dump_json()


def test_a_new_champion_is_the_headline_with_the_figures_and_what_became_of_the_alias(made: MadeRun) -> None:
    page, markdown = report(made, written(decided()))
    assert page.banner == f"good: Version 2 of {MODEL} is champion now."
    assert re.search(r"Version 2 against champion 1 ?measured ?\+8\.1 points \+5\.1 to \+11\.1", page.text)
    assert "accuracy on the frozen pairs, n = 384 pairs of 48 prompts, p = 0.00210" in page.text
    assert "The alias “champion” of demo-reward-model in MLflow was moved from version 1 to version 2." in page.text
    assert (
        "the frozen pairs (accuracy) 384 pairs 48 prompts 91.4 % 83.3 % +8.1 +5.1 to +11.1 64 33 0.00210 "
        "— — — 7.1 points" in page.text
    )
    assert (
        "safety (accuracy) 384 pairs 48 prompts 82.8 % 83.3 % −0.5 −3.5 to +2.5 64 33 0.00210 "
        "1.0 points −2.6 +2.0 7.1 points" in page.text
    )
    assert "Reward model champion new champion · version 2" in page.text
    assert f"## {MODEL}: ✔ new champion" in markdown
    assert "| the frozen pairs (accuracy) | 384 pairs (48 prompts) |" in markdown
    assert "was moved from version 1 to version 2" in markdown


def test_a_champion_that_stays_is_told_with_why_and_is_no_alarm(made: MadeRun) -> None:
    why = "version 1 stays champion: version 2 is not better beyond chance."
    page, _ = report(made, written(decided(kind="lost", text=why, champion_after=1)))
    assert page.banner == f"plain: Version 1 of {MODEL} stays champion."
    assert "Version 1 stays champion: version 2 is not better beyond chance." in page.text


def test_a_challenger_that_missed_its_gate_is_told_below_that(made: MadeRun) -> None:
    why = "version 1 stays champion: the challenger was not compared, since it did not pass its gate."
    refused = decided(kind="refused", text=why, challenger=None, champion_after=1, comparison=None)
    page, markdown = report(made, written(refused), verdict=gate("reward_model", passed=False), stopped="gate")
    assert page.banner.startswith("bad: The reward model did not pass its gate")
    assert f"Version 1 of {MODEL} stays champion." in page.text
    assert f"{MODEL}: refused at its gate" in page.text
    assert "Nothing was compared, so there is no table." in page.text
    assert f"## {MODEL}: refused at its gate" in markdown


def test_without_a_champion_the_page_says_so(made: MadeRun) -> None:
    none = decided(kind="refused", challenger=None, champion_before=None, champion_after=None, comparison=None)
    page, _ = report(made, written(none), verdict=gate("reward_model", passed=False))
    assert f"{MODEL} still has no champion." in page.text
    assert "Reward model champion refused at its gate · none yet" in page.text


def test_a_retraining_of_the_reward_model_has_no_empty_figures_of_a_policy(made: MadeRun) -> None:
    page, _ = report(made, written(decided()))
    assert "Win rate by the rewards" not in page.text
    assert "The run went up to" not in page.text


def test_two_decisions_stand_in_their_order(made: MadeRun) -> None:
    policy = decided(model="demo-policy", model_kind="policy", kind="lost", champion_after=1)
    page, markdown = report(made, written(decided(), policy))
    assert page.banner == "plain: Version 1 of demo-policy stays champion."
    assert page.text.index(f"{MODEL}: ✓ new champion") < page.text.index("demo-policy: champion stays")
    assert markdown.index(f"## {MODEL}") < markdown.index("## demo-policy")


def test_decisions_that_cannot_be_read_are_said_and_stop_nothing(made: MadeRun) -> None:
    page, _ = report(made, "{")
    assert "What the retraining decided cannot be read. See the champion's history: rlhf champion." in page.text


def test_a_run_that_is_no_retraining_speaks_of_no_champion(made: MadeRun) -> None:
    context = made.context()
    write_report.run(context)
    source = (context.output / REPORT_HTML_FILE).read_text(encoding="utf-8")
    assert 'id="champions"' not in source and 'href="#champions"' not in source


def test_a_failed_stage_stays_the_headline(made: MadeRun) -> None:
    failed = stage_record(LAST, made.root, status="failed", message="out of memory")
    changed = MadeRun(made.root, with_stages(made.pipeline, failed))
    page, _ = report(changed, written())
    assert page.banner == f"bad: {LAST} failed."


def test_texts_of_people_and_registries_stay_texts(made: MadeRun) -> None:
    page, markdown = report(made, written(decided(text=ATTACK, registry=ATTACK, model=ATTACK)))
    assert not [tag for tag, _ in page.tags if tag in ("script", "img")]
    assert "<script" not in markdown
