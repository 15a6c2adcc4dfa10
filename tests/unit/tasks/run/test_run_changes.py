"""Who runs again must see what they changed and what came of it, and nothing where nothing changed."""

from typing import Any

from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import PipelineRecord, StageRecord
from containers.document.html import page_html
from containers.document.model import Page
from containers.report.machines import changes_section
from tasks.run.changes import changed_keys, changes_since, flat


def record(**changes: Any) -> PipelineRecord:
    given = {
        "run_id": "1",
        "run_name": "demo",
        "started_at": "2026-11-28T14:02:00+00:00",
        "command": "rlhf run",
        "config_yaml": "train_policy:\n  beta: 0.05\n  rewards: [{type: math}]\nrun: {name: demo}\n",
        "git_commit": "a" * 40,
    }
    return PipelineRecord.model_validate({**given, **changes})


def judged(value: float) -> tuple[StageRecord, ...]:
    metric = Metric(name="exact_win_rate", value=value, unit="fraction", ci_low=value - 0.1, ci_high=value + 0.1)
    return (StageRecord(stage=StageName.EVALUATE_POLICY, status="ran", metrics=(metric,)),)


def test_settings_code_and_figures_are_named_with_both_values() -> None:
    before = record(stages=judged(0.5))
    now = record(
        config_yaml="train_policy:\n  beta: 0.1\n  rewards: [{type: math}]\n  algorithm: grpo\nrun: {name: demo}\n",
        git_commit="b" * 40,
        stages=judged(0.75),
    )
    found = {change.name: (change.kind, change.before, change.now) for change in changes_since(before, now)}
    assert found == {
        "train_policy.beta": ("setting", "0.05", "0.1"),
        "train_policy.algorithm": ("setting", "not set", '"grpo"'),
        "git commit": ("code", "a" * 40, "b" * 40),
        "evaluate_policy: exact_win_rate": (
            "figure",
            "50.0 % (40.0 to 60.0 %)",
            "75.0 % (65.0 to 85.0 %)",
        ),
    }


def test_nothing_changed_is_said_and_the_first_run_says_nothing() -> None:
    assert changes_since(None, record()) == ()
    assert changes_since(record(), record()) == ()
    assert changes_section(record()) == ()
    (section,) = changes_section(record(last_run_at="2026-11-28T14:02:00+00:00"))
    html = page_html(Page("x", (section,)))
    assert "Nothing differs from the run of 28 November 2026" in html


def test_a_list_is_one_value_and_a_broken_configuration_none() -> None:
    assert flat({"a": {"b": [1, {"c": 2}], "d": None}}) == {"a.b": [1, {"c": 2}], "a.d": None}
    assert changed_keys({"x": {"a": 1, "b": 2}, "y": {"b": 3, "c": None}}) == ["a", "b"]
    broken = changes_since(record(config_yaml="a: [1"), record(config_yaml="a: [1"))
    assert broken == ()
