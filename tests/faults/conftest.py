"""Fixtures of the fault tests, and the row that each of them leaves."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from contained import BEFORE, DOCKER, REFERENCE_STORE, STAGE_IMAGE, Scene, Trained
from fault_rows import Fault
from mortal_server import Mlflow, Prefect
from reference import POLICY, REWARD, SFT, Reference
from tiny_project import WITH_SFT, TinyProject, curves, weights_digest

from containers.contracts.names import StageName
from containers.launch.base import LaunchError
from containers.launch.docker.runtime import connect, stage_image_digest

UNDISTURBED = ("run.name=undisturbed", "run.store_dir=outputs/undisturbed-store")
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
    driven = tiny.drive(POLICY, *UNDISTURBED)
    assert driven.wait() == 0, driven.text
    return trained(tiny, "undisturbed", REWARD, POLICY)


@pytest.fixture(scope="session")
def undisturbed_sft(tiny: TinyProject, undisturbed: Reference) -> Reference:
    """Fine-tuning in the same store, once for all tests."""
    driven = tiny.drive(SFT, *UNDISTURBED, WITH_SFT)
    assert driven.wait() == 0, driven.text
    return trained(tiny, "undisturbed", SFT)


@pytest.fixture(scope="session")
def undisturbed_judgement(tiny: TinyProject, undisturbed: Reference) -> TinyProject:
    """The project, with both evaluations of the undisturbed models in the same store, once for all tests."""
    driven = tiny.drive(StageName.EVALUATE_POLICY, *UNDISTURBED)
    assert driven.wait() == 0, driven.text
    return tiny


def trained(tiny: TinyProject, run_name: str, *stages: StageName) -> Reference:
    artifacts = {stage: tiny.artifact(stage, run_name) for stage in stages}
    return Reference(
        {stage: weights_digest(folder) for stage, folder in artifacts.items()},
        {stage: curves(folder) for stage, folder in artifacts.items()},
    )


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    try:
        stage_image_digest(STAGE_IMAGE)
    except LaunchError as error:
        pytest.skip(f"NOTHING WAS TESTED WITH DOCKER: {error}")
    connected = connect()
    yield connected
    connected.close()


@pytest.fixture(scope="session")
def contained(tiny: TinyProject, client: docker.DockerClient) -> Trained:
    """One training in containers, in a store of its own, once for all tests."""
    driven = tiny.drive(REWARD, "run.name=contained", f"run.store_dir=outputs/{REFERENCE_STORE}", *DOCKER)
    assert driven.wait() == 0, driven.text
    artifact = tiny.artifact(REWARD, "contained")
    return Trained(artifact.name, weights_digest(artifact), curves(artifact))


@pytest.fixture
def scene(
    tiny: TinyProject, contained: Trained, client: docker.DockerClient, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    words = re.findall(r"[a-z0-9]+", request.node.name.removeprefix("test_"))
    name = "-".join(words)[:60].rstrip("-")
    scene = Scene(tiny, client, name, began_s=int(time.time()))
    tiny.copy_finished(BEFORE, source=REFERENCE_STORE, target=scene.store)
    yield scene
    for container in scene.containers():
        container.remove(force=True)


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    server = Mlflow(tmp_path_factory.mktemp("mlflow"))
    yield server
    server.stop()


@pytest.fixture
def mlflow(mlflow_server: Mlflow) -> Mlflow:
    """A server that runs; started again where the test before killed it."""
    mlflow_server.start()
    return mlflow_server


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    server = Prefect(tmp_path_factory.mktemp("prefect"))
    yield server
    server.stop()


@pytest.fixture
def prefect(prefect_server: Prefect) -> Prefect:
    """A server that runs; started again where the test before killed it."""
    prefect_server.start()
    return prefect_server
