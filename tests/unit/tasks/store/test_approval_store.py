"""One word of a person opens a gate: it must count once, for one model, and never be read out of rubbish."""

import hashlib
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from containers.contracts.records import GateDecision, GateRule, GateVerdict
from tasks.gates.text import approve_command, form_markdown, problem_with, waiting_text
from tasks.store.decisions import (
    AlreadyDecidedError,
    DamagedDecisionError,
    Decisions,
    Question,
    decision_key,
    decision_stands,
)

RULE = GateRule(name="accuracy on test", wanted="at least 60.0 %", found="72.0 % on 384 pairs", passed=True)


def question(*, key: str = "ab" * 32, passed: bool = True, **changes: object) -> Question:
    rule = RULE.model_copy(update={"passed": passed})
    values = {
        "key": key,
        "verdict": GateVerdict(name="reward_model", passed=passed, rules=(rule,)),
        "rules": {"minimum_accuracy": 0.6},
        "run_name": "weekly",
        "run_id": "20261121-112900-1a2b3c",
        "output_dir": "/runs/weekly",
        "asked_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "rlhf run -c configs/runs/weekly.yaml --until train_policy --set run.seed=7 --profile=cpu",
        **changes,
    }
    return Question.model_validate(values)


def word(outcome: str = "approved", by: str = "Ada", reason: str = "") -> GateDecision:
    return GateDecision.model_validate(
        {"outcome": outcome, "by": by, "reason": reason, "at": "2026-11-21T11:29:00+00:00", "origin": "rlhf approve"}
    )


def test_the_second_decision_is_refused_with_who_was_first(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path)
    decisions.decide(question(), word())
    with pytest.raises(AlreadyDecidedError, match=r"already approved by Ada .*--replace"):
        decisions.decide(question(), word("rejected", "Bob", "no"))
    assert decisions.find("reward_model", question().key) == word()


def test_of_many_who_decide_at_once_exactly_one_is_taken(tmp_path: Path) -> None:
    taken, refused = [], []
    start = threading.Barrier(8)

    def decide(name: str) -> None:
        start.wait()
        try:
            taken.append(Decisions(tmp_path).decide(question(), word(by=name)).by)
        except AlreadyDecidedError as error:
            refused.append(error.decision.by)

    people = [threading.Thread(target=decide, args=(f"person {number}",)) for number in range(8)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert len(taken) == 1
    assert set(refused) == set(taken)


def test_a_changed_mind_replaces_the_decision_and_keeps_the_earlier_ones(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path)
    decisions.decide(question(), word())
    decisions.decide(question(), word("rejected", "Bob", "biased"), replace=True)
    decisions.decide(question(), word("approved", "Cy"), replace=True)
    found = decisions.find("reward_model", question().key)
    assert found is not None
    assert [(found.outcome, found.by), *((old.outcome, old.by) for old in found.earlier)] == [
        ("approved", "Cy"),
        ("approved", "Ada"),
        ("rejected", "Bob"),
    ]


def test_a_decision_counts_for_no_other_model_figures_or_rules() -> None:
    def key(evaluation_key: str = "k", digest: str = "d", minimum: float = 0.6, gate: str = "reward_model") -> str:
        rules = {"minimum_accuracy": minimum}
        return decision_key(gate, evaluation_key=evaluation_key, evaluation_digest=digest, rules=rules)

    keys = {key(), key(evaluation_key="l"), key(digest="e"), key(minimum=0.5), key(gate="policy")}
    assert len(keys) == 5
    assert key() == key()


@pytest.mark.parametrize("content", ["", "{", '{"outcome": "approved"}', '{"outcome": "waiting", "by": "Ada"}', "[]"])
def test_a_file_that_is_no_decision_opens_nothing_and_can_be_set_aside(tmp_path: Path, content: str) -> None:
    decisions = Decisions(tmp_path)
    path = decisions.path("reward_model", question().key)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(DamagedDecisionError, match="counts as none"):
        decisions.find("reward_model", question().key)
    with pytest.raises(DamagedDecisionError):
        decisions.decide(question(), word())
    assert path.read_text() == content
    decisions.decide(question(), word(), replace=True)
    assert decisions.find("reward_model", question().key) == word()
    assert [item.read_text() for item in path.parent.glob("*.damaged-1")] == [content]


def test_a_decision_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: object, target: object) -> None:
        raise PermissionError("Operation not permitted")  # what a FUSE mount without hard links says

    monkeypatch.setattr(os, "link", no_links)
    Decisions(tmp_path).decide(question(), word())
    with pytest.raises(AlreadyDecidedError):
        Decisions(tmp_path).decide(question(), word(by="Bob"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{question().key}.json"]


def test_runs_that_ask_the_same_are_all_found_and_each_keeps_its_own_time(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path)
    asked = [
        question(asked_at="2026-11-20T10:00:00+00:00"),
        question(asked_at="2026-11-21T10:00:00+00:00", flow_run_id="f1"),
        question(asked_at="2026-11-19T10:00:00+00:00", output_dir="/runs/other"),
    ]
    for item in asked:
        decisions.keep_question(item)
    assert [item.asked_at[8:10] for item in decisions.questions("reward_model")] == ["21", "20", "19"]
    assert decisions.asked_before(question()) == asked[0]
    assert decisions.asked_before(question(output_dir="/runs/third")) is None
    assert decisions.questions("policy") == ()


def test_silence_waits_until_the_deadline_and_then_rejects() -> None:
    before = (datetime.now(UTC) - timedelta(hours=2)).isoformat(timespec="seconds")
    assert question(asked_at=before, timeout_h=3.0).unanswered().outcome == "waiting"
    assert question(asked_at=before, timeout_h=1.0).unanswered().outcome == "timed_out"
    assert question(asked_at=before, timeout_h=None).unanswered().outcome == "waiting"


def test_a_verdict_whose_decision_was_replaced_stands_no_more(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path)
    verdict = question().verdict.model_copy(update={"decision": word(), "decision_key": question().key})
    assert not decision_stands(verdict, tmp_path)
    decisions.decide(question(), word())
    assert decision_stands(verdict, tmp_path)
    decisions.decide(question(), word("rejected", "Bob", "no"), replace=True)
    assert not decision_stands(verdict, tmp_path)
    assert decision_stands(question().verdict, tmp_path)  # nobody was asked
    next(decisions.path(question().gate, question().key).parent.glob("*.json")).write_text("{half")
    assert not decision_stands(verdict, tmp_path), "a file that cannot be read"


@pytest.mark.parametrize(
    ("outcome", "passed", "by", "reason", "said"),
    [
        ("approved", True, "Ada", "", ""),
        ("approved", False, "Ada", "looks fine", "cannot be approved. Waive"),
        ("waived", False, "Ada", "a smoke test", ""),
        ("waived", False, "Ada", " ", "has no reason. To waive a gate"),
        ("waived", True, "Ada", "why not", "nothing to waive"),
        ("rejected", True, "Ada", "", "has no reason. To reject a model"),
        ("rejected", False, " ", "bad", "names no person"),
    ],
)
def test_a_decision_that_does_not_fit_is_refused_with_what_it_lacks(
    outcome: str, passed: bool, by: str, reason: str, said: str
) -> None:
    problem = problem_with(word(outcome, by, reason), question(passed=passed).verdict)
    assert (said in problem) if said else problem == ""


def test_the_command_that_decides_names_the_same_run_and_leaves_out_what_only_a_run_knows() -> None:
    assert (
        approve_command(question())
        == "rlhf approve -c configs/runs/weekly.yaml --set run.seed=7 --profile=cpu --gate reward_model"
    )
    assert approve_command(question(command="")) == "rlhf approve -c FILE --gate reward_model"


def test_who_is_asked_reads_figures_deadline_and_both_ways_on() -> None:
    text = waiting_text(question(passed=False, timeout_h=24.0, report="/runs/weekly/report.html"))
    for part in (
        "MISSED  accuracy on test: found 72.0 %",
        "Look at:  /runs/weekly/report.html",
        "Without a decision by",
        "--waive --by NAME",
        "--reject",
    ):
        assert part in text
    assert text.endswith(question().command)
    suspended = waiting_text(question(flow_run_id="f1", prefect_url="http://127.0.0.1:4200/runs/flow-run/f1"))
    assert "press Resume in Prefect: http://127.0.0.1:4200/runs/flow-run/f1" in suspended


def test_the_form_lists_the_figures_and_links_what_a_browser_can_open() -> None:
    page = "http://127.0.0.1:5000/#/experiments/1/runs/ab"
    text = form_markdown(question(report=f"{page}/artifacts/report/report.html", mlflow_url=page))
    assert "\n- ✓ accuracy on test: **72.0 % on 384 pairs**, wanted at least 60.0 %\n" in text
    assert f"[the report]({page}/artifacts/report/report.html), [curves and files in MLflow]({page})" in text
    assert "Approve the model and the run goes on; reject the model and the run ends." in text
    on_disk = form_markdown(question(passed=False, report="/runs/weekly/report.html"))
    assert "the report `/runs/weekly/report.html`." in on_disk
    assert "](" not in on_disk
    assert "Look closer" not in form_markdown(question())


def test_the_form_begins_with_why_the_last_answer_was_refused() -> None:
    assert form_markdown(question(), refused="The decision has no reason.").startswith(
        "**The last answer was not taken"
    )
    assert "✕ accuracy on test" in form_markdown(question(passed=False))


def test_each_damaged_file_is_kept_under_a_name_of_its_own(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path)
    path = decisions.path("reward_model", question().key)
    for content in ("first", "second", "third"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        decisions.decide(question(), word(), replace=True)
    kept = {item.name.rpartition("-")[2]: item.read_text() for item in path.parent.glob("*.damaged-*")}
    assert kept == {"1": "first", "2": "second", "3": "third"}


def test_a_refused_decision_says_why_the_first_one_was_taken(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path)
    decisions.decide(question(), word("rejected", "Bob", "biased."))
    with pytest.raises(
        AlreadyDecidedError, match=r"already rejected by Bob \(21 November 2026, 11:29 UTC\): biased\. N"
    ):
        decisions.decide(question(), word())


def test_a_deadline_is_so_many_hours_after_the_question() -> None:
    asked = question(asked_at="2026-11-21T10:00:00+00:00", timeout_h=1.5)
    assert (asked.until, question(timeout_h=None).until) == ("2026-11-21T11:30:00+00:00", "")
    assert asked.unanswered().until == asked.until
    left_s = question(timeout_h=2.0).seconds_left()
    assert left_s is not None and 7100 < left_s <= 7200
    assert question(timeout_h=None).seconds_left() is None


def test_a_question_is_found_under_the_name_that_an_older_version_gave_it(tmp_path: Path) -> None:
    """Under another name, people would be asked and notified again."""
    Decisions(tmp_path).keep_question(question(flow_run_id="f1"))
    run = hashlib.sha256(b"/runs/weekly\nf1").hexdigest()[:12]
    (path,) = (item for item in tmp_path.rglob("*") if item.is_file())
    assert path.name == f"{question().key}.{run}.question.json"
