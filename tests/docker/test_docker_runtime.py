"""The wall against a real daemon: what a stage can do inside, and what its death looks like from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import docker
import pytest
from launch_factory import KEY, Watcher, make_input, make_launch, make_profile, make_spec

from containers.contracts.hardware import UNLIMITED
from containers.contracts.names import OUTCOME_FILE, SPEC_FILE
from containers.contracts.outcome import FailureKind
from containers.contracts.spec import StageSpec
from containers.launch.cleanup import current_owner, remove_leftovers
from containers.launch.collect import read_outcome
from containers.launch.docker import DockerRuntime, stage_image_digest
from containers.launch.failure import classify
from containers.launch.runtime import (
    ImageChangedError,
    ImageMissingError,
    InputUnusableError,
    Launch,
    NameTakenError,
    StageExit,
)

pytestmark = pytest.mark.docker

NAME = f"rlhf-write_report-{KEY[:12]}"

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


def python(program: str) -> tuple[str, ...]:
    return ("python", "-c", program)


def run(
    tmp_path: Path, image: str, program: str, *, watcher: Watcher | None = None, grace_s: float = 10, **changes: Any
) -> tuple[StageExit, Launch]:
    launch_changes = {name: changes.pop(name) for name in ("labels", "on_line", "should_stop") if name in changes}
    spec = make_spec(**{"timeout_s": 120, **changes})
    launch = make_launch(tmp_path, spec, watcher=watcher, image=image, **launch_changes)
    return DockerRuntime(command=python(program), stop_grace_s=grace_s).run(launch), launch


def names(client: docker.DockerClient) -> list[str]:
    return [str(container.name) for container in client.containers.list(all=True, filters={"name": NAME})]


def test_a_stage_has_no_network_no_rights_and_one_writable_folder(tmp_path: Path, stage_image: str) -> None:
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "data.txt").write_text("hello")
    stage_exit, _ = run(tmp_path, stage_image, MEASURE, inputs=(make_input("pairs", tmp_path / "pairs"),))
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


def test_what_the_stage_writes_can_be_read_and_removed_by_the_orchestrator(tmp_path: Path, stage_image: str) -> None:
    program = "import os; os.makedirs('output/deep'); open('output/deep/file', 'w').write('42')"
    _, launch = run(tmp_path, stage_image, program)
    written = launch.work_folder / "output" / "deep" / "file"
    assert written.read_text() == "42"
    assert written.stat().st_uid != 0
    written.unlink()


def test_the_spec_inside_speaks_of_the_paths_inside(tmp_path: Path, stage_image: str) -> None:
    (tmp_path / "a file.jsonl").write_text("{}")
    program = "import json; s = json.load(open('/rlhf/spec/spec.json')); print(open(s['inputs'][0]['path']).read())"
    inputs = (make_input("train_data", tmp_path / "a file.jsonl"),)
    stage_exit, launch = run(tmp_path, stage_image, program, inputs=inputs)
    assert stage_exit.log_tail == ("{}",)
    spec = StageSpec.model_validate_json((launch.spec_folder / SPEC_FILE).read_text())
    assert spec.work_path == "/rlhf/work"
    assert launch.spec.inputs[0].path == str(tmp_path / "a file.jsonl"), "the launch itself keeps its host paths"


def test_log_lines_and_ticks_arrive_while_the_stage_runs(tmp_path: Path, stage_image: str) -> None:
    arrived: list[tuple[float, str]] = []
    program = "import time\nfor i in range(4): print('step', i); time.sleep(0.7)"
    started = time.monotonic()
    watcher = Watcher()
    stage_exit, launch = run(
        tmp_path, stage_image, program, watcher=watcher, on_line=lambda t: arrived.append((time.monotonic(), t))
    )
    ended = time.monotonic()
    assert [text for _, text in arrived] == ["step 0", "step 1", "step 2", "step 3"]
    assert ended - arrived[0][0] > 2, "the first line came long before the end"
    assert watcher.num_ticks >= 3
    assert (launch.spec_folder / "stage.log").read_text().splitlines() == list(stage_exit.log_tail)
    assert 2.8 < stage_exit.duration_s < ended - started


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_the_programs_own(tmp_path: Path, stage_image: str, code: int) -> None:
    stage_exit, launch = run(tmp_path, stage_image, f"import sys; sys.exit({code})")
    assert (stage_exit.exit_code, stage_exit.oom_killed, stage_exit.lost) == (code, False, False)
    assert stage_exit.image_digest == stage_image_digest(stage_image)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert failure.kind is FailureKind.UNEXPECTED


def test_a_program_that_dies_of_a_signal_shows_it(tmp_path: Path, stage_image: str) -> None:
    stage_exit, _ = run(tmp_path, stage_image, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (stage_exit.exit_code, stage_exit.signal) == (139, signal.SIGSEGV)


EATER = "x = []\nwhile True: x.append(bytearray(16 * 1024**2))"
CHILD_EATER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EATER!r}]); sys.exit(3)"


@pytest.mark.parametrize(("program", "code"), [(EATER, 137), (CHILD_EATER, 3)], ids=["the program", "only a child"])
def test_a_memory_kill_is_told_from_other_deaths(tmp_path: Path, stage_image: str, program: str, code: int) -> None:
    profile = make_profile(host_memory_gib=0.125)
    stage_exit, launch = run(tmp_path, stage_image, program, profile=profile)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert (stage_exit.exit_code, stage_exit.oom_killed) == (code, True)
    assert failure.kind is FailureKind.OUT_OF_HOST_MEMORY
    assert "0.125 GiB" in failure.message


def test_a_kill_from_outside_is_no_memory_kill(tmp_path: Path, stage_image: str, client: docker.DockerClient) -> None:
    def kill(line: str) -> None:
        client.containers.get(NAME).kill()

    stage_exit, launch = run(tmp_path, stage_image, "print('up'); import time; time.sleep(60)", on_line=kill)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST
    assert "137, not out of memory" in failure.message


def test_a_container_that_is_removed_under_us_is_lost(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    def remove(line: str) -> None:
        client.containers.get(NAME).remove(force=True)

    stage_exit, launch = run(tmp_path, stage_image, "print('up'); import time; time.sleep(60)", on_line=remove)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.lost or stage_exit.exit_code == 137
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST


SAVES_ON_SIGTERM = """
import signal, sys, time
def save(*_):
    open("saved", "w").write("state")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("up")
time.sleep(60)
"""


def test_a_stage_is_stopped_at_its_time_out_and_may_save_first(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    stage_exit, launch = run(tmp_path, stage_image, SAVES_ON_SIGTERM, timeout_s=2)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.timed_out
    assert 2 <= stage_exit.duration_s < 8
    assert (launch.work_folder / "saved").read_text() == "state"
    assert failure is not None
    assert failure.kind is FailureKind.TIMED_OUT
    assert names(client) == []


def test_a_stage_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, stage_image: str) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    stage_exit, _ = run(tmp_path, stage_image, program, timeout_s=1, grace_s=2)
    assert (stage_exit.exit_code, stage_exit.timed_out) == (137, True)
    assert 3 <= stage_exit.duration_s < 8


def test_cancel_stops_the_container(tmp_path: Path, stage_image: str, client: docker.DockerClient) -> None:
    watcher = Watcher()
    threading.Timer(1.5, lambda: setattr(watcher, "stop", True)).start()
    stage_exit, launch = run(tmp_path, stage_image, SAVES_ON_SIGTERM, watcher=watcher)
    failure = classify(launch.spec, stage_exit, None)
    assert stage_exit.cancelled
    assert failure is not None
    assert failure.kind is FailureKind.CANCELLED
    assert names(client) == []


def test_an_interrupt_stops_the_stage_in_good_order_and_leaves_no_container(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    def interrupt(line: str) -> None:
        if line == "up":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stage_image, SAVES_ON_SIGTERM, on_line=interrupt)
    assert names(client) == []
    assert (tmp_path / "work" / "saved").is_file()


def test_an_error_of_a_callback_leaves_no_container(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    def fail(line: str) -> None:
        raise ZeroDivisionError("the caller's own mistake")

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, stage_image, SAVES_ON_SIGTERM, on_line=fail)
    assert names(client) == []


def test_too_little_shared_memory_is_named_as_such(tmp_path: Path, stage_image: str) -> None:
    """64 MiB of /dev/shm, and a data loader that hands batches of 32 MiB to the main process."""
    program = """
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.zeros(8 * 1024**2)
for batch in DataLoader(Rows(), batch_size=1, num_workers=2, prefetch_factor=4): pass
"""
    profile = make_profile(shm_size_gib=0.0625)
    stage_exit, launch = run(tmp_path, stage_image, program, profile=profile)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None
    assert failure.kind is FailureKind.SHM_EXHAUSTED, failure.evidence
    assert "64 MiB" in failure.message
    assert "shm_size_gib" in failure.message


def test_the_real_entry_program_refuses_a_container_with_less_shared_memory_than_the_spec_demands(
    tmp_path: Path, stage_image: str
) -> None:
    spec = make_spec(timeout_s=120)
    spec = spec.model_copy(update={"required": spec.required.model_copy(update={"shm_size_bytes": 1024**3})})
    launch = make_launch(tmp_path, spec, image=stage_image)
    stage_exit = DockerRuntime().run(launch)
    failure = classify(spec, stage_exit, read_outcome(launch.work_folder))
    assert failure is not None
    assert failure.kind is FailureKind.MISSING_PREREQUISITE
    assert "asks for 1,024 MiB, this process has 128 MiB" in failure.message


def test_two_ranks_find_each_other_without_a_network(tmp_path: Path, stage_image: str) -> None:
    program = """
import os, sys
rank_program = '''
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1); dist.all_reduce(total)
print("world", dist.get_world_size(), "sum", int(total))
dist.destroy_process_group()
'''
open("rank.py", "w").write(rank_program)
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=2", "rank.py"]
os.execv(sys.executable, [sys.executable, *torchrun])
"""
    stage_exit, _ = run(tmp_path, stage_image, program, profile=make_profile(num_processes=2))
    assert stage_exit.exit_code == 0, stage_exit.log_tail
    assert [line for line in stage_exit.log_tail if line == "world 2 sum 2"] == ["world 2 sum 2"] * 2


def test_a_limit_that_the_host_refuses_is_left_out_and_demanded_no_more(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])"
    stage_exit, launch = run(tmp_path, stage_image, program, profile=make_profile(memlock_bytes=UNLIMITED))
    spec = StageSpec.model_validate_json((launch.spec_folder / SPEC_FILE).read_text())
    assert stage_exit.exit_code == 0
    if stage_exit.log_tail[-1] == "-1":
        pytest.skip("this host grants unlimited memlock, so the fallback could not be seen")
    assert "ulimit memlock" in stage_exit.log_tail[0]
    assert stage_exit.state["ulimit memlock"] == "refused by the host"
    assert spec.required.memlock_bytes == 0
    assert names(client) == []


def test_a_second_run_of_the_same_key_is_refused_and_told_who_holds_it(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    refusals: list[NameTakenError] = []

    def start_twin(line: str) -> None:
        try:
            run(tmp_path / "twin", stage_image, "print('never')")
        except NameTakenError as error:
            refusals.append(error)

    stage_exit, _ = run(tmp_path, stage_image, "print('up'); import time; time.sleep(1)", on_line=start_twin)
    assert stage_exit.exit_code == 0, "the first is not disturbed"
    assert len(refusals) == 1
    assert f"started by process {os.getpid()}" in str(refusals[0])
    assert NAME in str(refusals[0])


ORPHAN_MAKER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from launch_factory import make_launch, make_spec
from containers.launch.docker import DockerRuntime
def die(line):
    os.kill(os.getpid(), signal.SIGKILL)
program = "print('up', flush=True); import time; time.sleep(300)"
launch = make_launch(Path(sys.argv[1]), make_spec(), image=sys.argv[2], on_line=die)
DockerRuntime(command=("python", "-c", program)).run(launch)
"""


def orphan(tmp_path: Path, stage_image: str) -> None:
    folders = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "unit" / "launch")]
    command = [sys.executable, "-c", ORPHAN_MAKER, str(tmp_path / "dead"), stage_image, *folders]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def test_the_container_of_a_killed_orchestrator_is_reaped_by_its_label(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    foreign = client.containers.run(
        stage_image, ["python", "-c", "import time; time.sleep(300)"], detach=True, name="not-ours", init=True
    )
    try:
        orphan(tmp_path, stage_image)
        assert names(client) == [NAME], "SIGKILL leaves the container running"
        assert remove_leftovers(client, owner=current_owner(), stop_grace_s=2) == [NAME]
        assert names(client) == []
        foreign.reload()
        assert foreign.status == "running"
    finally:
        foreign.remove(force=True)


def test_the_next_run_of_the_key_replaces_the_container_of_a_killed_orchestrator(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    orphan(tmp_path, stage_image)
    stage_exit, _ = run(tmp_path, stage_image, "print('second')", grace_s=2)
    assert stage_exit.log_tail == ("second",)
    assert names(client) == []


def test_a_live_owners_container_is_never_reaped(tmp_path: Path, stage_image: str, client: docker.DockerClient) -> None:
    removed: list[str] = []

    def reap(line: str) -> None:
        removed.extend(remove_leftovers(client, owner=current_owner()))

    stage_exit, _ = run(tmp_path, stage_image, "print('up')", on_line=reap)
    assert (stage_exit.exit_code, removed) == (0, [])


def test_an_older_attempts_outcome_is_gone_before_the_stage_starts(tmp_path: Path, stage_image: str) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / OUTCOME_FILE).write_text("stale")
    run(tmp_path, stage_image, "import sys; sys.exit(1)")
    assert not (tmp_path / "work" / OUTCOME_FILE).exists()


def test_a_missing_image_names_the_command_that_builds_it(stage_image: str) -> None:
    with pytest.raises(ImageMissingError, match="make image"):
        stage_image_digest("rlhf-stage:no-such-tag")


def test_an_image_that_was_rebuilt_since_the_plan_is_refused(tmp_path: Path, stage_image: str) -> None:
    with pytest.raises(ImageChangedError, match="rebuilt"):
        run(tmp_path, stage_image, "print(1)", image_digest="sha256:" + "0" * 64)


def test_a_missing_input_is_named_before_a_container_is_made(
    tmp_path: Path, stage_image: str, client: docker.DockerClient
) -> None:
    with pytest.raises(InputUnusableError, match="pairs"):
        run(tmp_path, stage_image, "print(1)", inputs=(make_input("pairs", tmp_path / "nowhere"),))
    assert names(client) == []
    assert not (tmp_path / "nowhere").exists(), "the daemon did not make the folder"


def test_a_flood_of_log_lines_is_bounded_and_does_not_hold_up_the_time_out(tmp_path: Path, stage_image: str) -> None:
    watcher = Watcher()
    stage_exit, _ = run(tmp_path, stage_image, "while True: print('y' * 70)", watcher=watcher, timeout_s=3, grace_s=2)
    assert stage_exit.timed_out
    assert stage_exit.duration_s < 20
    assert len(watcher.lines) < 2000
    assert any("lines left out" in line for line in watcher.lines)


def test_a_fork_bomb_hits_the_process_limit(tmp_path: Path, stage_image: str) -> None:
    program = """
import os, sys, time
for number in range(6000):
    try:
        if os.fork() == 0:
            time.sleep(30); os._exit(0)
    except OSError as error:
        print("stopped", error.errno, number < 4200); sys.exit(0)
"""
    stage_exit, _ = run(tmp_path, stage_image, program)
    assert stage_exit.log_tail[-1] == "stopped 11 True"
