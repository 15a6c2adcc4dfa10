"""A probe that breaks off, or takes the program with it, costs the probes behind it nothing."""

from pathlib import Path

import pytest

from containers.contracts.configs.selftest import RESUMED_INPUT, UNINTERRUPTED_INPUT
from containers.contracts.hardware import GpuProfile
from tasks.checks.selftest.launching import Launch, Machine, measured
from tasks.run.runtime import CodeIdentity, present_stages_digest

CPU = GpuProfile(name="cpu", num_gpus=0, precision="float32", tf32=False, shm_size_gib=0.03)


def machine(folder: Path, **model: object) -> Machine:
    code = CodeIdentity(runtime="process", reason="", image_digest="", stages_digest=present_stages_digest())
    return Machine(CPU, code, image="", gpu_ids=(), folder=folder, model=model)


@pytest.mark.stages
def test_the_probe_behind_one_that_broke_off_is_measured(tmp_path: Path) -> None:
    there = machine(tmp_path, model_type="qwen3", num_attention_heads=4, num_key_value_heads=3, hidden_size=-1)
    broken, whole = measured(there, Launch(("numbers", "container"), CPU, limit_s=120))
    assert broken.probe == "numbers" and broken.error
    assert (whole.probe, whole.error) == ("container", "")
    assert all(value.value for value in whole.figures("loads"))
    assert whole.one("drifted") == 0


@pytest.mark.stages
def test_a_program_that_dies_fails_its_probe_and_says_how(tmp_path: Path) -> None:
    slow, other = measured(machine(tmp_path), Launch(("container", "memory"), CPU, limit_s=0.05))
    for found in (slow, other):
        assert "time" in found.error and "the program" in found.error


@pytest.mark.stages
def test_a_profile_whose_gpus_torch_does_not_see_says_so(tmp_path: Path) -> None:
    one_gpu = GpuProfile(name="1x80gb", num_gpus=1, gpu_memory_gib=80, shm_size_gib=0.03, num_threads=1)
    found = measured(machine(tmp_path), Launch(("memory",), one_gpu, limit_s=120))[0]
    assert found.error.startswith("Profile 1x80gb has 1 GPUs, torch")


@pytest.mark.stages
def test_weights_of_two_trainings_that_differ_are_compared_by_the_program(tmp_path: Path) -> None:
    torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    files = {name: tmp_path / f"{name}.safetensors" for name in (UNINTERRUPTED_INPUT, RESUMED_INPUT)}
    weights = torch.ones(8, 8)
    for name, file in files.items():
        safetensors.save_file({"weight": weights if name == UNINTERRUPTED_INPUT else weights * 1.01}, file)
    found = measured(machine(tmp_path / "work"), Launch(("resume",), CPU, limit_s=120, inputs=files))[0]
    assert (found.error, found.one("same_weights")) == ("", 0.0)
    assert found.one("relative") == pytest.approx(0.01, rel=1e-3)
