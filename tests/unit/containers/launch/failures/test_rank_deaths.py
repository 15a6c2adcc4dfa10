"""When a rank dies, the others only say that their connection broke; the cause stands in torchrun's report."""

import pytest

from containers.contracts.outcome import FailureKind
from containers.launch.failures.classify import classify
from containers.launch.failures.evidence import RankDeath, killed_rank, rank_deaths
from tests.unit.factories.launch_factory import make_exit, make_failure, make_profile, make_spec

SPEC = make_spec(profile=make_profile(shm_size_gib=0.0625))

# torch 2.13 on two CPU ranks, seen here: rank 1 killed, then in another run rank 0.
GLOO_RESET = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
    "[127.0.0.1]:27572: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the "
    "application. Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
)
# hkust-nlp/simpleRL-reason issue 17.
GLOO_CLOSED = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:38032"
)
# pytorch/pytorch issue 150916: agent and worker of the other rank were killed with `kill -9`.
NCCL_REMOTE = (
    "[rank1]:[E415 21:17:08.996319560 ProcessGroupNCCL.cpp:552] [Rank 1] Collective WorkNCCL(SeqNum=335, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) raised the following async exception: NCCL error: "
    "remote process exited or there was a network error, NCCL version 2.21.5"
)
KILLED_RANK_1 = """\
W1121 19:26:13.927000 20219 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 20224 closing signal SIGTERM
E1121 19:26:13.963000 20219 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 20225) of binary: /usr/bin/python
Traceback (most recent call last):
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
containers.stages.entry FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_19:26:13
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 20224)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 20224
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_19:26:13
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 20225)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 20225
=======================================================
""".splitlines()  # noqa: E501
# api.py of torch 2.13: a rank that hangs on the GPU does not end by SIGTERM, and torchrun kills it.
FORCED_RANK_0 = (
    "W1121 19:26:43.927000 20219 torch/distributed/elastic/multiprocessing/api.py:1050] Unable to shutdown process "
    "20224 via SIGTERM, forcefully exiting via SIGKILL"
)


def report(*, first: tuple[int, int], then: tuple[int, int]) -> list[str]:
    """Torchrun's report where the ranks ended otherwise: (rank, exit code) each; rank 0 is process 20224."""
    pids = {0: 20224, 1: 20225}
    words = {
        "  rank      : 0 (local_rank: 0)": f"  rank      : {then[0]} (local_rank: {then[0]})",
        "  rank      : 1 (local_rank: 1)": f"  rank      : {first[0]} (local_rank: {first[0]})",
        "  exitcode  : -15 (pid: 20224)  (SIGTERM)": f"  exitcode  : {then[1]} (pid: {pids[then[0]]})",
        "  exitcode  : -9 (pid: 20225)  (SIGKILL)": f"  exitcode  : {first[1]} (pid: {pids[first[0]]})",
    }
    return [words.get(line, line) for line in KILLED_RANK_1]


def test_the_report_is_read_with_the_rank_that_failed_first_at_the_front() -> None:
    assert rank_deaths(KILLED_RANK_1) == (
        RankDeath(rank=1, exit_code=-9, forced=False),
        RankDeath(rank=0, exit_code=-15, forced=False),
    )
    assert rank_deaths(["step 3 of 40", "rank: 3 is fine", GLOO_RESET]) == ()


@pytest.mark.parametrize("text", [GLOO_RESET, GLOO_CLOSED, NCCL_REMOTE], ids=["reset", "closed", "nccl"])
def test_the_peers_of_a_killed_rank_lost_it_and_the_stage_may_be_tried_again(text: str) -> None:
    own = make_failure(SPEC, "unexpected", text, "Traceback (most recent call last):", text)
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=(text, *KILLED_RANK_1)), own)
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST
    assert failure.kind.retry_can_help
    assert "rank 1 was killed (SIGKILL); the program saw: " in failure.message
    assert text in failure.evidence, "the program's own evidence stays"


def test_a_killed_first_rank_that_said_nothing_is_found_in_the_report() -> None:
    log = (GLOO_RESET, *report(first=(0, -9), then=(1, -15)))
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=log), None)
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST
    assert "rank 0 was killed (SIGKILL)" in failure.message


def test_a_peer_that_ended_in_the_same_moment_does_not_hide_the_killed_rank() -> None:
    log = (GLOO_RESET, *report(first=(0, 1), then=(1, -9)))
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=log), make_failure(SPEC, "unexpected", GLOO_RESET))
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST


def test_a_rank_that_the_kernel_killed_in_a_container_ran_out_of_memory() -> None:
    own = make_failure(SPEC, "unexpected", GLOO_RESET)
    failure = classify(SPEC, make_exit(exit_code=1, oom_killed=True, log_tail=tuple(KILLED_RANK_1)), own)
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_HOST_MEMORY


def test_a_lost_connection_without_a_killed_rank_stays_unexpected() -> None:
    own = make_failure(SPEC, "unexpected", GLOO_RESET)
    assert classify(SPEC, make_exit(exit_code=1, log_tail=(GLOO_RESET,)), own) == own


def test_a_rank_that_torchrun_kills_after_a_bug_in_another_one_does_not_make_it_a_lost_container() -> None:
    log = (FORCED_RANK_0, *report(first=(1, 1), then=(0, -9)))
    assert killed_rank(rank_deaths(log)) is None
    own = make_failure(SPEC, "unexpected", "Rank 1: KeyError: 'prompt'")
    assert classify(SPEC, make_exit(exit_code=1, log_tail=log), own) == own


def test_what_the_program_knows_of_itself_counts_before_a_killed_rank() -> None:
    own = make_failure(SPEC, "diverged", "loss is nan at step 13")
    assert classify(SPEC, make_exit(exit_code=1, log_tail=tuple(KILLED_RANK_1)), own) == own


def test_a_rank_that_nccl_aborts_after_a_time_out_timed_out() -> None:
    text = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)"
    log = (text, *report(first=(0, -6), then=(1, -15)))
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=log), None)
    assert failure is not None
    assert failure.kind is FailureKind.NCCL_TIMEOUT


@pytest.mark.parametrize(
    ("exit_code", "kind", "words"),
    [
        (-11, FailureKind.UNEXPECTED, "rank 1 died of SIGSEGV"),
        (-7, FailureKind.SHM_EXHAUSTED, "rank 1 died of SIGBUS, as when shared memory (/dev/shm) was full"),
        (3, FailureKind.UNEXPECTED, "exit code 1 and wrote no outcome"),
    ],
)
def test_a_rank_that_died_of_another_signal_is_named(exit_code: int, kind: FailureKind, words: str) -> None:
    log = (GLOO_RESET, *report(first=(1, exit_code), then=(0, -15)))
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=log), None)
    assert failure is not None
    assert failure.kind is kind
    assert words in failure.message
