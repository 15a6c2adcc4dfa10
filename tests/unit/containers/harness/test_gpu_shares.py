"""A rank that sees vLLM's GPUs would spread its batches over them; vLLM on a rank's GPU would take its memory."""

import pytest
import torch

from containers.contracts.hardware import GpuProfile
from containers.harness.errors import BadConfigError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE, part_gpus
from containers.rollouts.vllm_process import vllm_gpus

pytestmark = pytest.mark.stages

FIRST, LAST = torch.device("cuda", 0), torch.device("cuda", 2)


def profile(num_gpus: int, *, for_vllm: int) -> GpuProfile:
    return GpuProfile(name="box", num_gpus=num_gpus, num_processes=num_gpus - for_vllm, num_rollout_gpus=for_vllm)


@pytest.mark.parametrize(
    ("before", "ranks", "others"),
    [
        ({}, "0,1,2", "3"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d"}, "GPU-a,GPU-b,GPU-c", "GPU-d"),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "4,5,6", "7"),
    ],
)
def test_ranks_see_the_first_gpus_and_vllm_the_others(before: dict[str, str], ranks: str, others: str) -> None:
    environment = dict(before)
    part_gpus(profile(4, for_vllm=1), environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == ranks
    for device in (FIRST, LAST):
        assert vllm_gpus(device, 1, environment) == others


def test_nothing_is_parted_where_every_gpu_has_a_rank() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}
    part_gpus(profile(3, for_vllm=0), environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}
    assert ROLLOUT_GPUS_VARIABLE not in environment
    assert [vllm_gpus(device, 0, environment) for device in (FIRST, LAST)] == ["GPU-a", "GPU-c"]
    assert vllm_gpus(LAST, 0, {}) == "2"


def test_fewer_gpus_without_a_rank_than_vllm_is_to_have_are_said() -> None:
    environment: dict[str, str] = {}
    part_gpus(profile(4, for_vllm=1), environment)
    with pytest.raises(BadConfigError, match=r"vllm_gpus is 2, and the profile .* has 1 GPUs without a rank"):
        vllm_gpus(FIRST, 2, environment)
