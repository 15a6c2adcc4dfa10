"""Fixtures of the fault tests, and the row that each of them leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_rows import Fault
from reference import POLICY, REWARD, Reference
from tiny_project import TinyProject, curves, weights_digest

_RESULT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember how the test itself ended, for the row."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call":
        item.stash[_RESULT] = report


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Iterator[Fault]:
    """The row of this test."""
    fault = Fault(test=request.node.name)
    yield fault
    report = request.node.stash.get(_RESULT, None)
    skipped = str(report.longrepr[2]) if report is not None and report.skipped else ""
    fault.write(passed=report is not None and report.passed, skipped=skipped)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, project: Path) -> TinyProject:
    """One project folder for all fault tests: stages that a test does not change are made once."""
    return TinyProject.make(tmp_path_factory.mktemp("faults") / "project", project)


@pytest.fixture(scope="session")
def undisturbed(tiny: TinyProject) -> Reference:
    """Both trainings in a store of their own, once for all tests."""
    driven = tiny.drive(POLICY, "run.name=undisturbed", "run.store_dir=outputs/undisturbed-store")
    assert driven.wait() == 0, driven.text
    artifacts = {stage: tiny.artifact(stage, "undisturbed") for stage in (REWARD, POLICY)}
    return Reference(
        {stage: weights_digest(folder) for stage, folder in artifacts.items()},
        {stage: curves(folder) for stage, folder in artifacts.items()},
    )
