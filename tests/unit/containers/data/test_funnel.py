"""The funnel is the only witness of what was dropped; it must add up, and say so when it does not."""

import pytest

from containers.data.funnel import DroppedRow, FunnelCounter, dropped_text, funnel_table, shortened
from containers.data.splits import sample_of, share_of


def test_a_lost_row_is_an_error() -> None:
    counter = FunnelCounter({"train": 10})
    counter.step("tie", [DroppedRow("train", "a.jsonl", 1)])
    counter.check({"train": 8, "validation": 1})
    with pytest.raises(RuntimeError, match=r"read 10, kept 8 .*dropped 1"):
        counter.check({"train": 8})


def test_the_table_shows_each_filter_with_numbers_that_chain() -> None:
    counter = FunnelCounter({"train": 1200})
    counter.step("code_rows", [DroppedRow("train", "a", n, domain="code", language="python") for n in range(1000)])
    counter.step("tie", [])
    lines = funnel_table(counter.total).splitlines()
    assert lines[2].split() == ["code_rows", "1,200", "1,000", "200", "code", "1,000", "python", "1,000"]
    assert lines[3].split() == ["tie", "200", "0", "200"]


def test_the_reasons_that_took_most_are_said_in_a_line() -> None:
    counter = FunnelCounter({"train": 10_000})
    assert dropped_text(counter.total) == "0 dropped"
    for reason, dropped in (("code_rows", 4), ("tie", 1200), ("unknown_role", 0), ("duplicate", 20), ("empty", 1)):
        counter.step(reason, [DroppedRow("train", "a", n) for n in range(dropped)])
    assert dropped_text(counter.total, most=2) == ("1,225 dropped (1,200 tie, 20 duplicate, 5 for 2 other reasons)")
    assert dropped_text(counter.total, most=4) == ("1,225 dropped (1,200 tie, 20 duplicate, 4 code_rows, 1 empty)")


def test_each_source_is_counted_by_itself_and_both_together() -> None:
    counter = FunnelCounter({"train": 10, "validation": 4})
    counter.step("tie", [DroppedRow("train", "a", n) for n in range(3)] + [DroppedRow("validation", "b", 1)])
    counter.step("duplicate", [DroppedRow("validation", "b", 2)])
    assert [(step.rows_in, step.rows_out) for step in counter.total.steps] == [(14, 10), (10, 9)]
    assert [(step.rows_in, step.rows_out) for step in counter.of_source["train"].steps] == [(10, 7), (7, 7)]
    assert [(step.rows_in, step.rows_out) for step in counter.of_source["validation"].steps] == [(4, 3), (3, 2)]
    assert (counter.total.num_dropped, counter.of_source["validation"].rows_left) == (5, 2)


def test_long_texts_become_one_short_line() -> None:
    assert shortened("a\n b\t" + "c" * 50, 10) == "a b ccccc…"
    assert len(shortened("x" * 10_000, 200)) == 200


def test_a_share_is_near_its_fraction_and_never_empty_where_it_can_be() -> None:
    ids = [f"prompt {number}" for number in range(5000)]
    share = share_of(ids, fraction=0.1, seed=1, purpose="validation")
    assert 400 < len(share) < 600
    assert share != share_of(ids, fraction=0.1, seed=1, purpose="policy")
    assert len(share_of(ids[:3], fraction=1e-9, seed=1, purpose="x")) == 1
    assert share_of(ids[:1], fraction=1e-9, seed=1, purpose="x") == frozenset()
    assert share_of(ids, fraction=0, seed=1, purpose="x") == frozenset()


def test_a_sample_has_its_size_and_does_not_depend_on_order() -> None:
    ids = [f"pair {number}" for number in range(100)]
    sample = sample_of(ids, size=30, seed=1, purpose="x")
    assert len(sample) == 30
    assert sample == sample_of(ids[::-1], size=30, seed=1, purpose="x")
    assert sample_of(ids, size=1000, seed=1, purpose="x") == frozenset(ids)
