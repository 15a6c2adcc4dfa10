"""The reason that a person reads when a stage runs again."""

import hashlib
import re
from pathlib import Path

from containers.contracts.configs.parts.training import OptimizerSettings
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import identity_key, stage_identity
from containers.contracts.names import StageName
from containers.contracts.programs import Program
from containers.contracts.schedule import plan_batch
from containers.contracts.spec import StageInput
from tasks.store.history import StageHistory, StageMemory, stage_memory, what_changed, why_it_runs

STAGE = StageName.TRAIN_REWARD_MODEL
PROFILE = GpuProfile(name="cpu", num_gpus=0, precision="float32")


def memory(
    *, learning_rate: float = 1e-3, seed: int = 0, pairs: str = "sha256:aa", code: str = "sha256:1", batch: int = 8
) -> StageMemory:
    config = TrainRewardModelConfig(optimizer=OptimizerSettings(learning_rate=learning_rate))
    inputs = (StageInput(name="pairs", path="/x", digest=pairs, origin="filter_dataset 0123456789ab"),)
    identity = stage_identity(
        config, seed=seed, inputs=inputs, code_digest=code, profile=PROFILE, batch=plan_batch(batch, PROFILE)
    )
    return stage_memory(identity, key=identity_key(identity), inputs=inputs)


def test_a_changed_setting_is_named_with_both_values() -> None:
    reason = why_it_runs(STAGE, memory(), memory(learning_rate=2e-3))
    assert reason == "train_reward_model.optimizer.learning_rate changed from 0.001 to 0.002"


def test_a_changed_input_is_named_with_the_stage_that_made_it() -> None:
    reason = why_it_runs(STAGE, memory(), memory(pairs="sha256:bb"))
    assert reason == "its input pairs changed (filter_dataset 0123456789ab)"


def test_seed_and_programs_are_named() -> None:
    assert why_it_runs(STAGE, memory(), memory(seed=1)) == "run.seed changed from 0 to 1"
    assert "its program changed" in why_it_runs(STAGE, memory(), memory(code="sha256:2"))


def test_many_changes_are_counted_after_the_first_two() -> None:
    now = memory(learning_rate=2e-3, seed=1, pairs="sha256:bb", code="sha256:2", batch=16)
    reason = why_it_runs(STAGE, memory(), now)
    assert reason.startswith("its program changed")
    assert re.search(r"; and \d more$", reason)


def test_without_a_past_and_with_the_same_key_the_reason_is_no_setting() -> None:
    assert why_it_runs(STAGE, None, memory()) == "this run has no result of it yet"
    assert why_it_runs(STAGE, memory(), memory()) == "its artifact is gone"


def test_settings_and_inputs_that_come_or_go_are_named() -> None:
    def with_values(config: dict[str, object], *inputs: str) -> StageMemory:
        pairs = [[name, f"sha256:{name}"] for name in inputs]
        return StageMemory(key=f"{config}{inputs}", identity={"config": config, "inputs": pairs})  # type: ignore[dict-item]

    old, new = (
        with_values({"a": 1, "lora": {"r": 8}}, "pairs", "start"),
        with_values({"a": 1, "b": None}, "pairs", "sft"),
    )
    assert why_it_runs(STAGE, old, new) == (
        "train_reward_model.lora.r is no longer a setting; train_reward_model.b is a new setting; and 2 more"
    )
    assert why_it_runs(STAGE, with_values({}, "start"), with_values({}, "sft")) == (
        "its input sft is new; it no longer reads start"
    )
    assert why_it_runs(STAGE, with_values({"a": None}), with_values({"a": "x" * 41})) == (
        f"train_reward_model.a changed from null to {'x' * 39}…"
    )
    assert why_it_runs(STAGE, with_values({"a": 1}), with_values({"a": "x" * 40})).endswith(f" to {'x' * 40}")


def test_every_run_writes_its_own_report() -> None:
    assert why_it_runs(StageName.WRITE_REPORT, memory(), memory(seed=1)) == "every run writes its own"


def test_a_changed_program_is_told_by_its_files_and_versions() -> None:
    def made_with(files: dict[str, str], image: str = "", **libraries: str) -> Program:
        return Program(files=files, libraries=libraries, image=image)

    old = made_with({"a.py": "1", "b.py": "1", "c.py": "1"}, torch="2.12", trl="1.0")
    new = made_with({"a.py": "2", "b.py": "1", "d.py": "1"}, torch="2.13", trl="1.0")
    assert what_changed(old, new) == ("containers/a.py and containers/c.py and 1 more files changed; torch 2.12 → 2.13")
    two = made_with({"a.py": "2", "b.py": "2", "c.py": "1"}, torch="2.12", trl="1.0")
    assert what_changed(old, two) == "containers/a.py and containers/b.py changed"
    assert what_changed(old, old) == what_changed(None, new) == what_changed(old, None) == ""
    assert what_changed(old, made_with({**old.files, "b.py": "2"}, torch="2.12", trl="1.0")) == (
        "containers/b.py changed"
    )
    assert what_changed(made_with({}, "sha256:1"), made_with({}, "sha256:2")) == "image sha256:1 → sha256:2"
    assert what_changed(made_with({}, torch="2.12"), made_with({})) == "torch 2.12 → absent"


def test_a_run_finds_the_history_that_an_older_version_wrote(tmp_path: Path) -> None:
    """Its file is named after the run and its folder; under another name, every stage would seem new."""
    folder = tmp_path / "runs" / "demo"
    digest = hashlib.sha256(str(folder).encode()).hexdigest()
    path = StageHistory(tmp_path, run_name="demo", output_dir=folder).path
    assert path == tmp_path / "runs" / f"demo-{digest[:8]}.json"
