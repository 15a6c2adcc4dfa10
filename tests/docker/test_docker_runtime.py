"""The wall against a real daemon: what a stage can do inside, and what comes out while it runs."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from containers.contracts.hardware import UNLIMITED
from containers.contracts.names import SPEC_FILE
from containers.contracts.outcome import FailureKind
from containers.contracts.spec import StageSpec
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.docker.runtime import stage_image_digest
from containers.launch.environment import folder_environment
from containers.launch.failures.classify import classify
from tests.unit.factories.launch_factory import Watcher, make_input, make_profile

pytestmark = pytest.mark.docker

RunStage = Callable[..., tuple[StageExit, LaunchRequest]]
Names = Callable[[], list[str]]

MEASURE = """
import json, os, resource, socket
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
shm = os.statvfs("/dev/shm")
def refused(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__ + f" {error.errno}"
    return "allowed"
print(json.dumps({
    "uid": os.getuid(), "CapEff": status["CapEff"], "CapBnd": status["CapBnd"], "NoNewPrivs": status["NoNewPrivs"],
    "Seccomp": status["Seccomp"], "interfaces": os.listdir("/sys/class/net"), "shm": shm.f_frsize * shm.f_blocks,
    "mounts": sorted(os.listdir("/rlhf")), "stack": resource.getrlimit(resource.RLIMIT_STACK)[0],
    "write root": refused(lambda: open("/opt/x", "w")),
    "write input": refused(lambda: open("/rlhf/inputs/pairs/new", "w")),
    "write spec": refused(lambda: open("/rlhf/spec/new", "w")),
    "connect": refused(lambda: socket.create_connection(("1.1.1.1", 53), timeout=3)),
    "read input": open("/rlhf/inputs/pairs/data.txt").read(), "cwd": os.getcwd(),
    "environment": dict(os.environ),
}))
"""


def test_a_stage_has_no_network_no_rights_and_one_writable_folder(tmp_path: Path, run: RunStage) -> None:
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "data.txt").write_text("hello")
    stage_exit, _ = run(MEASURE, inputs=(make_input("pairs", tmp_path / "pairs"),))
    seen = json.loads(stage_exit.log_tail[-1])
    assert stage_exit.exit_code == 0
    assert seen["uid"] != 0
    assert seen["CapEff"] == seen["CapBnd"] == "0" * 16
    assert (seen["NoNewPrivs"], seen["Seccomp"]) == ("1", "2")
    assert seen["interfaces"] == ["lo"]
    assert seen["connect"].startswith("OSError")
    assert seen["write root"] == seen["write input"] == seen["write spec"] == "OSError 30", "read-only file system"
    assert seen["mounts"] == ["inputs", "spec", "work"]
    assert seen["read input"] == "hello"
    assert seen["cwd"] == "/rlhf/work"
    assert seen["shm"] == 128 * 1024**2
    assert seen["stack"] == 8 * 1024**2
    assert seen["environment"]["HF_HUB_OFFLINE"] == "1"
    assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == ""


def test_what_the_stage_writes_can_be_read_and_removed_by_the_orchestrator(run: RunStage) -> None:
    program = "import os; os.makedirs('output/deep'); open('output/deep/file', 'w').write('42')"
    _, launch = run(program)
    written = launch.work_folder / "output" / "deep" / "file"
    assert written.read_text() == "42"
    assert written.stat().st_uid != 0
    written.unlink()


def test_the_spec_inside_speaks_of_the_paths_inside(tmp_path: Path, run: RunStage) -> None:
    (tmp_path / "a file.jsonl").write_text("{}")
    program = "import json; s = json.load(open('/rlhf/spec/spec.json')); print(open(s['inputs'][0]['path']).read())"
    inputs = (make_input("train_data", tmp_path / "a file.jsonl"),)
    stage_exit, launch = run(program, inputs=inputs)
    assert stage_exit.log_tail == ("{}",)
    spec = StageSpec.model_validate_json((launch.spec_folder / SPEC_FILE).read_text())
    assert spec.work_path == "/rlhf/work"
    assert launch.spec.inputs[0].path == str(tmp_path / "a file.jsonl"), "the launch itself keeps its host paths"


def test_log_lines_and_ticks_arrive_while_the_stage_runs(run: RunStage) -> None:
    arrived: list[tuple[float, str]] = []
    program = "import time\nfor i in range(4): print('step', i); time.sleep(0.7)"
    started = time.monotonic()
    watcher = Watcher()
    stage_exit, launch = run(program, watcher=watcher, on_line=lambda t: arrived.append((time.monotonic(), t)))
    ended = time.monotonic()
    assert [text for _, text in arrived] == ["step 0", "step 1", "step 2", "step 3"]
    assert ended - arrived[0][0] > 2, "the first line came long before the end"
    assert watcher.num_ticks >= 3
    assert (launch.spec_folder / "stage.log").read_text().splitlines() == list(stage_exit.log_tail)
    assert 2.8 < stage_exit.duration_s < ended - started


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_the_programs_own(stage_image: str, run: RunStage, code: int) -> None:
    stage_exit, launch = run(f"import sys; sys.exit({code})")
    assert (stage_exit.exit_code, stage_exit.oom_killed, stage_exit.lost) == (code, False, False)
    assert stage_exit.image_digest == stage_image_digest(stage_image)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert failure.kind is FailureKind.UNEXPECTED


def test_two_ranks_find_each_other_without_a_network(run: RunStage) -> None:
    program = """
import os, sys
rank_program = '''
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1); dist.all_reduce(total)
# One write a line: both ranks share the stream.
sys.stdout.write(f"world {dist.get_world_size()} sum {int(total)}{chr(10)}")
dist.destroy_process_group()
'''
open("rank.py", "w").write(rank_program)
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=2", "rank.py"]
os.execv(sys.executable, [sys.executable, *torchrun])
"""
    stage_exit, _ = run(program, profile=make_profile(num_processes=2))
    assert stage_exit.exit_code == 0, stage_exit.log_tail
    assert [line for line in stage_exit.log_tail if line == "world 2 sum 2"] == ["world 2 sum 2"] * 2


def test_a_limit_that_the_host_refuses_is_left_out_and_demanded_no_more(run: RunStage, names: Names) -> None:
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])"
    stage_exit, launch = run(program, profile=make_profile(memlock_bytes=UNLIMITED))
    spec = StageSpec.model_validate_json((launch.spec_folder / SPEC_FILE).read_text())
    assert stage_exit.exit_code == 0
    if stage_exit.log_tail[-1] == "-1":
        pytest.skip("this host grants unlimited memlock, so the fallback could not be seen")
    assert "ulimit memlock" in stage_exit.log_tail[0]
    assert stage_exit.state["ulimit memlock"] == "refused by the host"
    assert spec.required.memlock_bytes == 0
    assert names() == []


def test_a_flood_of_log_lines_is_bounded_and_does_not_hold_up_the_time_out(run: RunStage) -> None:
    watcher = Watcher()
    stage_exit, _ = run("while True: print('y' * 70)", watcher=watcher, timeout_s=3, grace_s=2)
    assert stage_exit.timed_out
    assert stage_exit.duration_s < 20
    assert len(watcher.lines) < 2000
    assert any("lines left out" in line for line in watcher.lines)


def test_a_fork_bomb_hits_the_process_limit(run: RunStage) -> None:
    program = """
import os, sys, time
for number in range(6000):
    try:
        if os.fork() == 0:
            time.sleep(30); os._exit(0)
    except OSError as error:
        print("stopped", error.errno, number < 4200); sys.exit(0)
"""
    stage_exit, _ = run(program)
    assert stage_exit.log_tail[-1] == "stopped 11 True"


LOADS_FROM_ITS_CACHES = """
import ctypes, json, os, pathlib, shutil, sysconfig
library = next(pathlib.Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so"))
told = json.loads(os.environ["FOLDERS"])
for name in told:
    folder = pathlib.Path(os.environ[name])
    folder.mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(shutil.copy(library, folder / f"{name}.so"))  # two names may mean one folder
    print(name, "loads")
"""


def test_what_a_library_compiles_can_be_loaded_from_every_folder_where_libraries_put_it(run: RunStage) -> None:
    names = ["HOME", *(name for name in folder_environment("/x") if not name.startswith("TORCH_NCCL"))]
    program = f"import os; os.environ['FOLDERS'] = {json.dumps(json.dumps(names))}\n{LOADS_FROM_ITS_CACHES}"
    stage_exit, _ = run(program)
    assert stage_exit.exit_code == 0, stage_exit.log_tail
    assert list(stage_exit.log_tail) == [f"{name} loads" for name in names]
