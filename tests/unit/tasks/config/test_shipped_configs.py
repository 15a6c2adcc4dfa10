"""Every file that ships must load: it is the first thing that a person tries, and the last that a developer does."""

from pathlib import Path

import pytest
import yaml

from containers.contracts.hardware import GpuProfile
from tasks.config.loading import load_run_config
from tasks.config.profiles import is_ladder
from tasks.plan.run_plan import plan_run

CONFIGS = Path(__file__).resolve().parents[4] / "configs"
RUNS = sorted((CONFIGS / "runs").glob("*.yaml"))
ON_REAL_DATA = [path for path in RUNS if "../shared/data/" in path.read_text()]
PROFILES = sorted((CONFIGS / "gpu_profiles").glob("*.yaml"))
LADDERS = [path for path in PROFILES if is_ladder(yaml.safe_load(path.read_text()))]


def test_the_promised_files_ship() -> None:
    assert {path.stem for path in RUNS} >= {"demo", "real-small", "helpsteer3-qwen3-8b"}
    names = {"7x48gb", "4x48gb", "1x48gb", "1x80gb", "1x141gb", "8x48gb", "8x80gb", "8x141gb", "cpu", "auto"}
    assert {path.stem for path in PROFILES} >= names
    assert [path.stem for path in LADDERS] == ["auto"]


@pytest.mark.parametrize("path", [path for path in RUNS if path not in ON_REAL_DATA], ids=lambda path: path.stem)
def test_every_run_loads_and_can_be_planned(path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    loaded = load_run_config(path)
    assert loaded.config.run.name == path.stem
    plan_run(loaded)


@pytest.mark.shared_data
@pytest.mark.parametrize("run", ON_REAL_DATA, ids=lambda path: path.stem)
def test_a_run_on_real_data_names_files_that_exist(
    run: Path, shared_data: Path, project_beside_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_beside_data)
    loaded = load_run_config(run)
    config = loaded.config
    named = [config.tokenizer_file]
    for source in config.sources:
        named += [source.train, *([source.validation] if source.validation else [])]
    named += [suite.path for suite in config.evaluate_reward_model.suites]
    for path in named:
        assert path is not None
        assert str(path).startswith("../shared/data/")
        assert (shared_data / Path(path).relative_to("../shared/data")).is_file()
    plan_run(loaded)


@pytest.mark.parametrize("path", [path for path in PROFILES if path not in LADDERS], ids=lambda path: path.stem)
def test_every_profile_is_valid_and_named_as_its_file(path: Path) -> None:
    profile = GpuProfile.model_validate(yaml.safe_load(path.read_text()))
    assert profile.name == path.stem
    assert profile.num_gpus <= 1 or profile.shm_size_gib >= 16
    assert profile.num_gpus == 0 or profile.memlock_bytes == -1


def test_the_production_run_pins_what_it_starts_from(project: Path) -> None:
    config = load_run_config(project / "configs/runs/helpsteer3-qwen3-8b.yaml").config
    assert config.base_model is not None
    assert (config.base_model.hub_id, config.base_model.revision) == ("Qwen/Qwen3-8B", "main")
    assert (config.dataset.hub_id, config.dataset.revision) == ("nvidia/HelpSteer3", "main")
    assert config.filter_dataset.languages == ("english",)
    assert config.train_reward_model.lora is not None and config.train_reward_model.lora.r == 64
    assert config.train_sft is None
