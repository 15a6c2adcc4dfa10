"""What an upgrade costs a run is said once at the top of its plan, by the names of what changed."""

from importlib import metadata
from pathlib import Path

import pytest

from containers.contracts.names import StageName
from containers.contracts.programs import Program
from flows.cli.main import main
from flows.demo.rows import write_demo_data
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.pipeline.stages import required_config
from tasks.run.runtime import code_identity
from tasks.store.format import STORE_FILE, STORE_FORMAT
from tasks.store.history import StageHistory, StageMemory

pytestmark = pytest.mark.waits

TRAINED = (StageName.TRAIN_REWARD_MODEL, StageName.TRAIN_POLICY)


def present(config: RunConfig, stage: StageName) -> Program:
    return code_identity("process", image="").program(required_config(config, stage))


@pytest.fixture
def config(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo in a folder of its own, whose two trainings were made by other versions."""
    monkeypatch.chdir(tmp_path)
    write_demo_data(tmp_path / "outputs/demo/data")
    path = project / "configs/runs/demo.yaml"
    loaded = load_run_config(path, overrides=["runtime.kind=process"]).config
    store = loaded.store_dir.resolve()
    history = StageHistory(store, run_name="demo", output_dir=loaded.output_dir)
    for stage in TRAINED:
        now = present(loaded, stage)
        earlier = Program(
            files=now.files | {"training/loop.py": "0" * 64}, libraries=now.libraries | {"torch": "0.0.1"}
        )
        history.remember(stage, StageMemory(key="0" * 64, identity={"code": earlier.digest}, program=earlier))
    return path


def plan(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["plan", "-c", str(config), "--set", "runtime.kind=process"]) == 0
    return capsys.readouterr().out


def test_the_plan_names_the_versions_that_changed_the_stages_and_the_cost(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = plan(config, capsys).splitlines()
    assert first.startswith("UPGRADE: sources, packages or image of stages changed since the last run: ")
    assert f"torch 0.0.1 → {metadata.version('torch')}, 1 source file. So" in first
    assert "trl" not in first.replace("rlhf", "")
    assert "So 2 of its stages are not reused (train_reward_model, train_policy): " in first
    assert "(estimated" in first
    assert not [line for line in rest if line.startswith("UPGRADE")]


def test_a_run_that_was_never_made_and_one_that_nothing_changed_say_nothing(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Path("outputs/store").resolve()
    history = StageHistory(store, run_name="demo", output_dir=Path("outputs/demo"))
    loaded = load_run_config(config, overrides=["runtime.kind=process"]).config
    for stage in TRAINED:
        history.remember(stage, StageMemory(key="0" * 64, identity={"code": present(loaded, stage).digest}))
    assert "UPGRADE" not in plan(config, capsys)


def test_what_an_earlier_version_did_not_note_is_still_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in Path("outputs/store/programs").iterdir():
        file.write_text("{", encoding="utf-8")
    first = plan(config, capsys).splitlines()[0]
    assert "stages changed since the last run: an earlier version did not record which. So" in first


def test_a_store_of_a_newer_version_is_said_by_the_plan_and_refused_by_run_and_cache(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = f'{{"format": {STORE_FORMAT + 1}, "written_by": "9.9.9"}}'
    (Path("outputs/store") / STORE_FILE).write_text(mark, encoding="utf-8")
    assert "written by rlhf-flows 9.9.9" in plan(config, capsys).splitlines()[0]
    assert main(["run", "-c", str(config), "--set", "runtime.kind=process"]) == 1
    assert "written by rlhf-flows 9.9.9" in capsys.readouterr().out
    for action in ("ls", "verify", "gc"):
        assert main(["cache", action, "--store", "outputs/store"]) == 2
        assert "written by rlhf-flows 9.9.9" in capsys.readouterr().err
