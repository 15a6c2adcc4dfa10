"""A suite that cannot be had is named before anything is trained, with its key."""

from pathlib import Path

import pytest

from containers.contracts.configs.evaluate_reward_model import SuiteFile
from tasks.sources.errors import SourceError
from tasks.sources.pinned import BranchMayHaveMovedError
from tasks.sources.suites import pinned_suite, probe_suite, resolve_suite

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_local_suite_becomes_an_input_of_its_name_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    suite = SuiteFile(name="truth", benchmark="truthfulqa", path=str(path))
    found = resolve_suite(suite, token=None)
    assert (found.name, found.path) == ("suite_truth", str(path))
    before = found.digest
    path.write_text('{"a": 1}\n')
    assert resolve_suite(suite, token=None).digest != before
    assert pinned_suite(suite).digest == resolve_suite(suite, token=None).digest


def test_a_suite_that_is_not_there_is_named_by_its_key(tmp_path: Path) -> None:
    suite = SuiteFile(name="truth", path=str(tmp_path / "gone.jsonl"))
    with pytest.raises(SourceError, match=r"evaluate_reward_model\.suites truth"):
        probe_suite(suite, token=None)


def test_local_pairs_are_looked_into_and_other_benchmarks_are_left_to_their_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "q", "response_A": "a", "response_B": "b", "label": "A>B"}\n')
    with pytest.raises(SourceError):
        probe_suite(SuiteFile(name="x", path=str(path)), token=None)
    assert str(path) in probe_suite(SuiteFile(name="x", benchmark="judge_bench", path=str(path)), token=None).found


def test_a_commit_of_the_hub_is_known_without_asking_and_a_branch_is_not() -> None:
    suite = SuiteFile(name="rb", benchmark="reward_bench_2", hub_id="org/data", revision=COMMIT, path="data/*.parquet")
    found = pinned_suite(suite)
    assert (found.name, found.digest) == ("suite_rb", f"hub:{COMMIT}:data/*.parquet")
    with pytest.raises(BranchMayHaveMovedError):
        pinned_suite(suite.model_copy(update={"revision": "main"}))
