"""A debug run must be short whatever the run is, and must never be taken for a real one."""

from pathlib import Path

import pytest

from tasks.config.debug import DebugShapes, debug_notice, debug_settings, is_debug
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.plan.run_plan import plan_run
from tests.unit.factories.run_files import write_run

CONFIGS = Path(__file__).resolve().parents[4] / "configs"
RUNS = sorted((CONFIGS / "runs").glob("*.yaml"))


def _debug(path: Path, *overrides: str, shapes: DebugShapes = "small") -> tuple[LoadedConfig, LoadedConfig]:
    real = load_run_config(path, overrides=overrides)
    return real, load_run_config(path, overrides=[*overrides, *debug_settings(real.config, shapes=shapes)])


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_shipped_run_becomes_a_debug_run_that_can_be_planned(
    path: Path, project_beside_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_beside_data)
    _, debug = _debug(path)
    stages = {stage.stage: stage for stage in plan_run(debug).stages}
    trained = [name for name in stages if name.startswith("train_")]
    assert trained
    for name in trained:
        schedule = stages[name].schedule
        assert schedule is None or (schedule.num_steps, schedule.save_steps) == (2, 2)
    if debug.config.has_reward_model:
        assert debug.config.train_reward_model.schedule.eval_steps == 1
    assert debug.config.filter_dataset.max_rows is not None and debug.config.filter_dataset.max_rows < 100
    assert not debug.config.has_policy or debug.config.evaluate_policy.max_prompts == 4


def test_a_debug_run_has_its_own_name_folder_and_store_and_shows_what_it_is(tmp_path: Path) -> None:
    real, debug = (loaded.config for loaded in _debug(write_run(tmp_path, run={"name": "small", "tags": ["mine"]})))
    assert debug.run.name == "small-debug"
    assert (debug.output_dir, debug.store_dir) == (Path("outputs/small-debug"), Path("outputs/small-debug/store"))
    assert debug.store_dir != real.store_dir
    assert debug.run.tags == ("mine", "debug")
    assert (is_debug(real), is_debug(debug)) == (False, True)
    assert debug.write_report.title.startswith("DEBUG, no real run")
    assert "small-debug" in debug_notice(debug) and "figures mean nothing" in debug_notice(debug)


def test_a_run_with_folders_and_the_longest_name_of_its_own_keeps_apart_from_them(tmp_path: Path) -> None:
    run = {"name": "a" * 56 + "-" + "b" * 6, "output_dir": "x/out", "store_dir": "x/store"}
    _, debug = _debug(write_run(tmp_path, run=run))
    assert debug.config.run.name == "a" * 56 + "-debug"
    assert (debug.config.output_dir, debug.config.store_dir) == (Path("x/out-debug"), Path("x/out-debug/store"))


def test_its_gates_are_waived_by_debug_and_ask_nobody(tmp_path: Path) -> None:
    gates = {"reward_model": {"approval": "required"}, "policy": {"approval": "when_closed"}}
    _, debug = _debug(write_run(tmp_path, gates=gates))
    for gate in (debug.config.gates.reward_model, debug.config.gates.policy):
        assert gate.approval == "none" and gate.waive is not None
        assert gate.waive.by == "debug" and "two steps" in gate.waive.reason


def test_batches_divide_over_any_number_of_ranks_and_iterations_do_not_matter(tmp_path: Path) -> None:
    _, debug = _debug(
        write_run(tmp_path, train_policy={"num_generations": 8, "num_iterations": 4, "lora": {"r": 8}}, train_sft={}),
        "gpu_profile.num_gpus=7",
        "gpu_profile.num_processes=7",
        "gpu_profile.gpu_memory_gib=48",
        "gpu_profile.default_global_batch_size=56",
    )
    policy = debug.config.train_policy
    assert (policy.global_batch_size, policy.num_generations, policy.num_iterations) == (14, 2, 1)
    assert debug.config.train_reward_model.global_batch_size == 7
    assert debug.config.train_sft is not None and debug.config.train_sft.global_batch_size == 7


def test_what_a_person_set_for_the_model_is_what_the_debug_run_tries(tmp_path: Path) -> None:
    _, debug = _debug(
        write_run(tmp_path), "train_reward_model.trainable=head", "train_reward_model.lora=null", "run.seed=9"
    )
    assert (debug.config.train_reward_model.trainable, debug.config.run.seed) == ("head", 9)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_with_full_shapes_a_step_of_every_shipped_run_is_the_real_one(
    path: Path, project_beside_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is of the same batches and tokens at a time, and needs the same memory; two steps find enough rows."""
    monkeypatch.chdir(project_beside_data)
    real, debug = _debug(path, shapes="full")
    planned = [{stage.stage: stage for stage in plan_run(loaded).stages} for loaded in (real, debug)]
    for name in (name for name in planned[1] if name.startswith("train_")):
        own, short = planned[0][name], planned[1][name]
        assert short.schedule is None or (short.schedule.num_steps == 2 <= short.schedule.steps_per_epoch)
        assert short.batch == own.batch
        assert short.memory == own.memory
    assert is_debug(debug.config)
    assert debug.config.run.name.endswith("-debug-full")
    notice = debug_notice(debug.config)
    assert "at full shapes" in notice and "memory and time of a step are too" in notice


def test_full_shapes_keep_what_decides_memory_and_speed(tmp_path: Path) -> None:
    policy = {"num_generations": 8, "rollout_batch_size": 512, "max_completion_length": 200, "lora": {"r": 8}}
    path = write_run(tmp_path, train_policy=policy, train_sft={"max_length": 700}, answer_sets=None)
    real, debug = (loaded.config for loaded in _debug(path, "gpu_profile.default_global_batch_size=64", shapes="full"))
    kept = ("num_generations", "rollout_batch_size", "max_completion_length", "global_batch_size", "num_iterations")
    for key in kept:
        assert getattr(debug.train_policy, key) == getattr(real.train_policy, key)
    assert debug.evaluate_policy.max_completion_length == real.evaluate_policy.max_completion_length
    assert debug.train_reward_model.global_batch_size == real.train_reward_model.global_batch_size
    assert debug.train_sft is not None and real.train_sft is not None
    assert debug.train_sft.max_length == real.train_sft.max_length
    assert debug.filter_dataset.max_rows == 8 * 64, "64 pairs, and 512 completions of 64 prompts"
    assert debug.run.tags[-2:] == ("debug", "full-shapes")
    assert debug.output_dir != _debug(path)[1].config.output_dir
