"""On a machine with GPUs: the self-test passes on them, and its speeds are in the plan. `make test-gpu` runs it."""

from pathlib import Path

import pytest

from containers.contracts.configs.selftest import Selftest
from flows.cli.main import main
from tasks.config.loading import load_run_config
from tasks.plan.run_plan import draft_plan
from tasks.store.selftests import kept_selftests

pytestmark = pytest.mark.gpu
RUN, PROFILE = "configs/runs/helpsteer3-qwen3-8b.yaml", "auto"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def record(store: Path, project: Path) -> Selftest:
    options = ["--profile", PROFILE, "--set", f"run.store_dir={store}"]
    profile = load_run_config(project / RUN, profile=PROFILE).config.gpu_profile
    assert profile.num_gpus, f"no GPU: {profile.chosen_because}"
    main(["selftest", "-c", str(project / RUN), *options])
    return next(kept_selftests(store))


def test_no_probe_fails(record: Selftest) -> None:
    assert [f"{row.name}: {row.why}" for row in record.failed] == []


def test_nothing_is_left_out_but_what_needs_several_ranks(record: Selftest) -> None:
    left_out = {row.probe for row in record.results if row.verdict == "not run"}
    assert left_out <= ({"connections", "one_rank"} if record.num_gpus == 1 else set())


def test_the_plan_reckons_with_the_measured_speed(record: Selftest, store: Path, project: Path) -> None:
    assert record.speed is not None
    run = load_run_config(project / RUN, overrides=[f"run.store_dir={store}"], profile=PROFILE).config
    assert any(f"self-test of {record.host}" in line for line in draft_plan(run).assumptions)
