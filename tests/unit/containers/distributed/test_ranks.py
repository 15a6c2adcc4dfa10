"""Ranks that do not find each other train alone, each into the same folder, and exit with 0."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.hardware import BatchPlan, GpuProfile
from containers.contracts.names import StageName
from containers.distributed.ranks import join_ranks, leave_ranks, spread_over_ranks
from containers.harness.errors import MissingPrerequisiteError
from containers.training.arguments import _hardware_arguments
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages

TWO_RANKS = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)


def test_a_lone_rank_of_a_plan_for_two_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    context = make_context(tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {}, batch=TWO_RANKS)
    with pytest.raises(MissingPrerequisiteError, match="The batch plan has 2 ranks, this process is one of 1"):
        join_ranks(context)


def test_without_other_ranks_all_work_is_done_here() -> None:
    assert spread_over_ranks([1, 2, 3], lambda items: [item * 2 for item in items]) == [2, 4, 6]
    assert leave_ranks() is True


# One rank of two: it joins as a stage does, says which time-out the group's own backend has, and parts as a stage does.
RANK = """
import sys
from pathlib import Path
from torch import distributed
from containers.contracts.spec import StageSpec
from containers.harness.context import StageContext
from containers.distributed.ranks import join_ranks, leave_ranks
from containers.harness.recorder import Recorder
spec = StageSpec.model_validate_json(Path(sys.argv[1]).read_text())
work = Path(spec.work_path)
join_ranks(StageContext(spec=spec, work=work, recorder=Recorder(work / "events.jsonl")))
print(distributed.group.WORLD._get_backend(__import__("torch").device("cpu")).options._timeout.total_seconds())
is_first = leave_ranks()
print("joined" if distributed.is_initialized() else "parted", "first" if is_first else "other")
"""


@pytest.mark.slow
def test_ranks_wait_for_each_other_as_long_as_the_profile_says_and_part_at_the_end(tmp_path: Path) -> None:
    profile = GpuProfile(name="2cpu", num_gpus=0, num_processes=2, precision="float32", collective_timeout_s=417)
    context = make_context(
        tmp_path, StageName.TRAIN_REWARD_MODEL, TrainRewardModelConfig(), {}, batch=TWO_RANKS, profile=profile
    )
    spec_file = tmp_path / "spec.json"
    spec_file.write_text(context.spec.model_dump_json())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(spec_file)],
            env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=240)[0].split() for rank in ranks]
    assert said == [["417.0", "parted", "first"], ["417.0", "parted", "other"]]
    assert [rank.returncode for rank in ranks] == [0, 0]


# A wrapped model outlives the ranks' parting, as the stage's own does; then it goes.
PARTING = """
from pathlib import Path
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from containers.distributed.ranks import leave_ranks, spread_over_ranks

def gloo_threads():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop")

distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
model = DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
spread_over_ranks([1, 2, 3], lambda items: items)
before = gloo_threads()
leave_ranks()
del model
print(before, gloo_threads())
"""


def test_nothing_waits_for_the_threads_of_a_group_that_was_left() -> None:
    """DDP's reducer would, with the interpreter locked; a thread that has to drop a tensor then waits for both."""
    ended = subprocess.run([sys.executable, "-c", PARTING], capture_output=True, text=True, check=True, timeout=120)
    before, after = ended.stdout.split()
    assert before == after != "0"


def test_on_gpus_the_trainer_is_given_the_same_time_out() -> None:
    profile = GpuProfile(name="2x48gb", num_gpus=2, num_processes=2, collective_timeout_s=417)
    assert _hardware_arguments(profile, TWO_RANKS)["ddp_timeout"] == 417
