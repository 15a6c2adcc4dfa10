"""A suite that lies on a hub is fetched, known by its commit, judged by its rule, and missed in words when offline."""

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.hub_server import FakeHub

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import SINGLE_BATCH
from containers.contracts.names import StageName
from containers.contracts.spec import StageInput
from containers.evals.suites.reward_bench import SUBSETS
from containers.stages import evaluate_reward_model
from tasks.pipeline.inputs import suite_inputs
from tasks.sources.errors import HubUnreachableError, SourceNotFoundError
from tasks.sources.suites import pinned_suite, probe_suite
from tests.unit.factories.made_reward_models import random_model, write_reward_model
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.stage_keys import stage_key
from tests.unit.factories.suite_factory import reward_bench_row

pytestmark = pytest.mark.stages

HUB_ID = "allenai/reward-bench"
PATTERN = "data/filtered-*"
FILE = "data/filtered-00000-of-00001.parquet"
CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.chdir(tmp_path)
        yield fake


def repository(*, rows_per_subset: int = 1) -> dict[str, bytes]:
    """The files of the published one: the suite as parquet, raw rows and code beside it."""
    rows = [reward_bench_row(number, subset) for number, subset in enumerate(SUBSETS * rows_per_subset)]
    sink = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return {
        FILE: sink.getvalue(),
        "data/raw-00000-of-00001.parquet": b"never fetched",
        "README.md": b"# RewardBench",
        "load.py": b"import os",
    }


def suite(revision: str = "main", **changes: str) -> SuiteFile:
    fields = {"name": "reward-bench", "benchmark": "reward_bench", "hub_id": HUB_ID, "path": PATTERN, **changes}
    return SuiteFile.model_validate({**fields, "revision": revision})


def key_of(config: EvaluateRewardModelConfig, inputs: tuple[StageInput, ...]) -> str:
    return stage_key(config, seed=1, inputs=inputs, code_digest="code", profile=CPU, batch=SINGLE_BATCH)


def test_a_suite_named_by_branch_is_judged_and_the_certificate_names_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    commit = hub.commit("datasets", HUB_ID, repository())
    config = EvaluateRewardModelConfig(suites=(suite("main"),), max_length=512, num_bootstrap=100, num_edited_pairs=0)
    (fetched,) = suite_inputs(config.suites)
    assert hub.downloads() == [FILE]
    model = write_reward_model(tmp_path / "model", random_model(), colour_rows(8))
    local = {"pairs": write_pairs(tmp_path / "pairs", colour_rows(8)), "reward_model": model}
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, local)
    spec = context.spec.model_copy(update={"inputs": (*context.spec.inputs, fetched)})
    evaluate_reward_model.run(replace(context, spec=spec))

    certificate = Certificate.model_validate_json((context.output / "certificate.json").read_bytes())
    judged = certificate.suites[1]
    assert (judged.name, judged.benchmark, judged.num_items, judged.missing) == ("reward-bench", "reward_bench", 23, ())
    assert judged.origin == f"{HUB_ID}@{commit} {PATTERN}"
    assert judged.digest == f"hub:{commit}:{PATTERN}"
    assert [section.name for section in judged.sections] == ["Chat", "Chat Hard", "Safety", "Reasoning"]
    pairs = pq.read_table(context.output / "scores_reward-bench.parquet").to_pylist()
    right = {row["subset"]: float(row["margin"] > 0) for row in pairs}
    assert {subset.name: subset.value for subset in judged.subsets} == right
    assert commit in (context.output / "certificate.html").read_text(encoding="utf-8")


def test_a_branch_and_its_commit_are_one_result_in_the_store_and_a_branch_that_moved_is_another(hub: FakeHub) -> None:
    first = hub.commit("datasets", HUB_ID, repository())
    branch, commit = (EvaluateRewardModelConfig(suites=(suite(revision),)) for revision in ("main", first))
    before = key_of(branch, suite_inputs(branch.suites))
    assert before == key_of(commit, suite_inputs(commit.suites)) == key_of(commit, (pinned_suite(suite(first)),))
    second = hub.commit("datasets", HUB_ID, repository(rows_per_subset=2))
    (moved,) = suite_inputs(branch.suites)
    assert moved.digest == f"hub:{second}:{PATTERN}"
    assert pq.read_table(moved.path).num_rows == 46
    assert key_of(branch, (moved,)) != before
    assert key_of(commit, suite_inputs(commit.suites)) == before
    demanding = EvaluateRewardModelConfig(suites=(suite(first).model_copy(update={"benchmark": "pairs"}),))
    assert key_of(demanding, suite_inputs(demanding.suites)) != before


def test_without_a_network_a_fetched_commit_is_used_and_a_branch_is_refused_with_that_commit(hub: FakeHub) -> None:
    commit = hub.commit("datasets", HUB_ID, repository())
    fetched = suite_inputs((suite(commit),))
    hub.stop()
    assert suite_inputs((suite(commit),)) == fetched
    assert "fetched" in probe_suite(suite(commit), token=None).found
    with pytest.raises(HubUnreachableError, match=rf"{HUB_ID}@main: the hub cannot be read .* network: {commit}"):
        suite_inputs((suite("main"),))


@pytest.mark.parametrize("look", [probe_suite, lambda wanted, token: suite_inputs((wanted,))])
def test_offline_a_suite_that_was_never_fetched_is_refused_before_any_stage(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, look: object
) -> None:
    assert callable(look)
    commit = hub.commit("datasets", HUB_ID, repository())
    hub.stop()
    with pytest.raises(HubUnreachableError) as refused:
        look(suite(commit), token=None)
    text = str(refused.value)
    assert text.startswith(
        f"evaluate_reward_model.suites reward-bench: dataset {HUB_ID}@{commit}: the hub cannot be read"
    )
    assert "download it elsewhere and give its file as `path`" in text
    assert "--set" not in text


def test_a_repository_or_revision_that_is_not_there_is_told_of_the_suite(hub: FakeHub) -> None:
    with pytest.raises(SourceNotFoundError, match=r"suites reward-bench: .* does not exist .* Correct its hub_id"):
        suite_inputs((suite("main"),))
    hub.commit("datasets", HUB_ID, repository())
    with pytest.raises(SourceNotFoundError, match=r"the revision does not\. Correct its revision"):
        suite_inputs((suite("nope"),))


def test_a_pattern_that_matches_no_data_names_the_suite_and_what_there_is(hub: FakeHub) -> None:
    hub.commit("datasets", HUB_ID, repository())
    with pytest.raises(SourceNotFoundError) as refused:
        suite_inputs((suite("main", path="data/test-*"),))
    assert str(refused.value).startswith("evaluate_reward_model.suites reward-bench: no data file of allenai/reward-")
    assert f"it holds: {FILE}, data/raw-" in str(refused.value)
    assert hub.downloads() == []
