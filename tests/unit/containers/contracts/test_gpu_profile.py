"""A profile that says something which nobody does is a promise that is not kept; it is refused with the reason."""

from typing import Any

import pytest
from pydantic import ValidationError

from containers.contracts.hardware import BatchPlan, GpuProfile, MeasuredContract, RequiredContract
from containers.contracts.variables import extra_variable_mistakes, refuse_unknown, where_a_variable_is_set


def _profile(**changes: Any) -> GpuProfile:
    return GpuProfile(**{"name": "4x48gb", "num_gpus": 4, "num_processes": 4, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"distribution": "fsdp", "num_gpus": 1, "num_processes": 1}, "divides a model over ranks"),
        ({"precision": "float32"}, "would refuse the model. Set tf32 to false"),
        ({"distribution": "fsdp2"}, "already is torch's second version"),
        ({"distribution": "ZeRO3"}, "`distribution: fsdp` divides weights, gradients and optimizer states"),
        ({"launcher": "accelerate"}, "starts the same ranks as torchrun"),
        ({"distribution": "pipeline"}, "Input should be 'ddp' or 'fsdp'"),
        ({"launcher": "slurm"}, "Input should be 'torchrun'"),
        ({"nccl": {"p2p_disable": True, "shm_disable": True}}, "talk over TCP"),
        ({"nccl": {"p2p_level": "LOC", "shm_disable": True, "ib_disable": True}}, "talk over TCP"),
        ({"torch": {"nccl_trace_buffer_size": 0}}, "dumps an empty record"),
        ({"environment": {"NCCL_TIMEOUT": "1800"}}, "collective_timeout_s"),
        ({"environment": {"NCCL_BUFFSIZ": "1"}}, "Did you mean NCCL_BUFFSIZE"),
        ({"environment": {"NCCL_DEBUGGING_MODE": "1"}}, "no variable that NCCL reads. Leave it out"),
        ({"environment": {"NCCL_P2P_DISABLE": "1"}}, "Set nccl.p2p_disable instead"),
        ({"environment": {"OMP_NUM_THREADS": "9"}}, "Set num_threads instead"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "is set by the launcher"),
        ({"environment": {"TORCH_NCCL_BLOCKING_WAIT": "1"}}, "switches TORCH_NCCL_ASYNC_ERROR_HANDLING off"),
        ({"environment": {"AWS_PROFILE": "x"}}, "is no hardware variable"),
        ({"environment": {"HF_TOKEN": "hf_x"}}, "is a secret"),
    ],
)
def test_what_nobody_would_do_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        _profile(**changes)


def test_a_variable_without_a_key_of_its_own_passes_and_the_profile_survives_json() -> None:
    profile = _profile(environment={"NCCL_IB_HCA": "mlx5", "NCCL_ALGO": "Ring"})
    assert profile.environment == (("NCCL_ALGO", "Ring"), ("NCCL_IB_HCA", "mlx5"))
    assert GpuProfile.model_validate_json(profile.model_dump_json()) == profile


def test_a_model_may_be_divided_over_several_ranks() -> None:
    assert _profile(distribution="fsdp").distribution == "fsdp"
    assert _profile().distribution == "ddp"


def test_switches_that_are_harmless_alone_are_flagged_together() -> None:
    assert refuse_unknown({"NCCL_P2P_LEVEL": "LOC"}) == []
    assert refuse_unknown({"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "0"}) == []
    for off in ({"NCCL_P2P_LEVEL": "LOC"}, {"NCCL_P2P_DISABLE": "1"}):
        (sentence,) = refuse_unknown({**off, "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"})
        assert "over TCP" in sentence and "Turn off p2p alone first" in sentence


def test_each_mistake_is_a_sentence_of_its_own() -> None:
    found = extra_variable_mistakes({"NCCL_WISH": "1", "NCCL_DEBUG": "INFO", "EDITOR": "vi"})
    assert [line.partition(":")[0] for line in found] == ["NCCL_WISH", "EDITOR", "NCCL_DEBUG"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NCCL_TIMEOUT", "NCCL_TIMEOUT is read by no library"),
        ("NCCL_DEBUG", "gpu_profile.nccl.debug."),
        ("CUDA_VISIBLE_DEVICES", "is set by the launcher"),
        ("NCCL_IB_HCA", "is set by gpu_profile.environment.NCCL_IB_HCA."),
    ],
)
def test_a_hardware_variable_leads_to_the_key_that_sets_it(name: str, said: str) -> None:
    assert said in where_a_variable_is_set(name)


def test_any_other_variable_leads_nowhere() -> None:
    assert where_a_variable_is_set("EDITOR") == ""


@pytest.mark.parametrize("key", ["default_global_batch_size", "max_per_device_batch_size", "num_threads"])
def test_a_size_is_at_least_one(key: str) -> None:
    assert getattr(_profile(**{key: 1}), key) == 1
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        _profile(**{key: 0})


@pytest.mark.parametrize(
    ("key", "least"),
    [
        ("global_batch_size", 1),
        ("per_device_batch_size", 1),
        ("num_processes", 1),
        ("gradient_accumulation_steps", 1),
    ],
)
def test_no_part_of_a_batch_is_empty(key: str, least: int) -> None:
    ones = dict.fromkeys(BatchPlan.model_fields, 1)
    assert getattr(BatchPlan.model_validate({**ones, key: least}), key) == least
    with pytest.raises(ValidationError, match=key):
        BatchPlan.model_validate({**ones, key: least - 1})


@pytest.mark.parametrize("size", [0, -1, 65_537, "nan", "much"])
def test_a_memory_limit_that_no_machine_has_is_refused(size: object) -> None:
    with pytest.raises(ValidationError, match="more than 0 and at most 65,536"):
        _profile(host_memory_gib=size)


def test_a_memory_limit_may_be_small_large_or_none() -> None:
    assert [_profile(host_memory_gib=size).host_memory_gib for size in (0.5, 65_536, "unlimited", None)] == [
        0.5,
        65_536,
        "unlimited",
        None,
    ]


def test_what_root_measures_in_a_container_is_a_measurement_too() -> None:
    measured = MeasuredContract(findings=(), hostname="a", python="3.11", num_cpus=1, memory_bytes=0, user_id=0)
    assert MeasuredContract.model_validate_json(measured.model_dump_json()) == measured


def test_a_profile_has_a_name() -> None:
    assert _profile(name="a").name == "a"
    with pytest.raises(ValidationError, match="name"):
        _profile(name="")


@pytest.mark.parametrize(
    ("changes", "is_one_each"),
    [
        ({"num_gpus": 4, "num_processes": 4}, True),
        ({"num_gpus": 4, "num_processes": 3}, False),
        ({"num_gpus": 4, "num_processes": 5}, False),
        ({"num_gpus": 4, "num_processes": 3, "num_rollout_gpus": 1}, True),
        ({"num_gpus": 4, "num_processes": 4, "num_rollout_gpus": 1}, False),
        ({"num_gpus": 0, "num_processes": 3, "precision": "float32"}, True),
    ],
)
def test_each_gpu_has_one_rank_but_for_those_that_write_completions(changes: dict[str, Any], is_one_each: bool) -> None:
    if is_one_each:
        assert _profile(**changes).num_processes == changes["num_processes"]
        return
    with pytest.raises(ValidationError, match=r"one rank per GPU\.") as refused:
        _profile(**changes)
    assert ("of which 1 have no rank" in str(refused.value)) is bool(changes.get("num_rollout_gpus"))


@pytest.mark.parametrize(
    ("changes", "is_possible"),
    [
        ({"precision": "float32", "tf32": False}, True),
        ({"precision": "float32", "tf32": True}, False),
        ({"precision": "bf16", "tf32": True}, True),
        ({"num_gpus": 0, "num_processes": 1, "precision": "float32"}, True),
        ({"num_gpus": 0, "num_processes": 1, "precision": "bf16"}, False),
        ({"num_gpus": 0, "num_processes": 2, "precision": "float32", "distribution": "fsdp"}, True),
    ],
)
def test_a_precision_is_one_that_the_hardware_computes_as_the_certificate_expects(
    changes: dict[str, Any], is_possible: bool
) -> None:
    if is_possible:
        _profile(**changes)
        return
    with pytest.raises(ValidationError, match="precision"):
        _profile(**changes)


@pytest.mark.parametrize("environment", [{"NCCL_ALGO": True}, {"NCCL_ALGO": None}, {"NCCL_ALGO": 1.5}])
def test_a_variable_that_is_no_text_and_no_whole_number_could_have_several_forms(environment: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="wanted text in quotes"):
        _profile(environment=environment)
    assert _profile(environment={"NCCL_NTHREADS": 256}).environment == (("NCCL_NTHREADS", "256"),)


def test_a_contract_without_a_memory_limit_crosses_the_boundary() -> None:
    contract = RequiredContract(shm_size_bytes=0, num_gpus=0, enforced=False)
    assert contract.host_memory_bytes == 0
    assert RequiredContract.model_validate_json(contract.model_dump_json()) == contract
