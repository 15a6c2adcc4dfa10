"""What grows with the runs of a store is read once: a command that reads every history or manifest again is soon slow.

Files are counted and not seconds, so that a busy machine changes nothing; `benchmarks.load` has the seconds.
"""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.load_store import FILES_OF_AN_ARTIFACT, fill_reports, fill_store
from flows.cli.approve import show_waiting
from flows.cli.cache import collect_garbage, list_store, verify_store
from flows.demo.rows import write_demo_data
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.pipeline.lookup import look_up_stages
from tasks.pipeline.standing_report import last_record

pytestmark = pytest.mark.waits

NUM_RUNS, OWN_ARTIFACTS = 100, 5
_OPENED: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _OPENED is not None:
        _OPENED.append(str(arguments[0]))


sys.addaudithook(_note)


@contextmanager
def opened_below(folder: Path) -> Iterator[list[str]]:
    """The files below that folder that the block opens, each as often as it does; the list is filled at its end."""
    global _OPENED
    _OPENED, found = [], []
    try:
        yield found
    finally:
        found += [path for path in _OPENED if path.startswith(str(folder)) and Path(path).is_file()]
        _OPENED = None


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[LoadedConfig]:
    """The demo in a folder whose store has many runs."""
    folder = tmp_path_factory.mktemp("many")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HOME", str(folder / "hub"))  # no adapter of this machine is looked at
        write_demo_data(Path("outputs/demo/data"))
        found = load_run_config(project / "configs/runs/demo.yaml")
        fill_store(found.config, num_runs=NUM_RUNS, own_artifacts=OWN_ARTIFACTS)
        fill_reports(found.config, num_reports=NUM_RUNS)
        yield found


def store(loaded: LoadedConfig) -> Path:
    return loaded.config.store_dir.resolve()


def num_artifacts(loaded: LoadedConfig) -> int:
    return len(list((store(loaded) / "artifacts").glob("*/*/MANIFEST.json")))


@pytest.mark.parametrize(
    ("command", "of_each_artifact", "of_each_run"),
    [
        (list_store, 1, 1),
        (verify_store, 1 + FILES_OF_AN_ARTIFACT, 0),
        (lambda folder, console: collect_garbage(folder, console, older_than_days=7, delete=False), 0, 1),
    ],
    ids=["ls", "verify", "gc"],
)
def test_housekeeping_opens_each_file_once(
    loaded: LoadedConfig, command: Callable[[Path, Console], int], of_each_artifact: int, of_each_run: int
) -> None:
    said = io.StringIO()
    with opened_below(store(loaded)) as opened:
        assert command(store(loaded), Console(file=said, width=120)) == 0
    assert said.getvalue()
    assert num_artifacts(loaded) >= NUM_RUNS * OWN_ARTIFACTS
    assert len(opened) == of_each_artifact * num_artifacts(loaded) + of_each_run * NUM_RUNS


def test_what_waits_at_a_gate_is_found_with_each_question_read_once(
    loaded: LoadedConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened_below(store(loaded)) as opened:
        assert show_waiting(loaded, gate=None) == 0
    assert "rlhf approve" in capsys.readouterr().out
    assert len(opened) <= NUM_RUNS + 5


def test_what_a_run_has_already_is_looked_up_by_its_key_whatever_else_the_store_holds(loaded: LoadedConfig) -> None:
    with opened_below(store(loaded)) as opened:
        look_up_stages(loaded.config)
    assert len(opened) <= len(loaded.config.stages)


def test_the_last_report_is_found_without_reading_the_others(loaded: LoadedConfig) -> None:
    with opened_below(loaded.config.output_dir) as opened:
        assert last_record(loaded.config.output_dir) is not None
    assert len(opened) == 1
