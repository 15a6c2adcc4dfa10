"""A bare exit code helps nobody. Texts were seen here where a comment says so, else taken from sources and reports."""

import pytest

from containers.contracts.outcome import FailureKind
from containers.launch.failures.classify import classify
from containers.launch.failures.evidence import MAX_LINE_CHARACTERS, exit_evidence
from tests.unit.factories.launch_factory import make_exit, make_failure, make_profile, make_result, make_spec

SPEC = make_spec(profile=make_profile(shm_size_gib=0.0625, host_memory_gib=2), timeout_s=60)

# torch 2.13 in a container with 64 MiB of /dev/shm, DataLoader with two workers.
TORCH_SHM = (
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_87_3086186913_4>: "
    "No space left on device (28)"
)
# torch 2.13, the same on another try: the worker was killed while it wrote.
TORCH_BUS = (
    "RuntimeError: DataLoader worker (pid 87) is killed by signal: Bus error. It is possible that dataloader's workers "
    "are out of shared memory. Please try to raise your shared memory limit."
)
# NVIDIA/nccl issue 1518, and pytorch/ci-infra pull request 490 (NCCL 2.27).
NCCL_SHM = (
    "[1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-NzwJ7O (size 9637888)"
)
NCCL_EXTEND = (
    "[0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space "
    "left on device (28)"
)
# hiyouga/LlamaFactory issue 7396.
NCCL_TIMEOUT = (
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out."
)
GLOO_TIMEOUT = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
    "operation to complete"
)
# torch 2.13, two ranks of which one was stopped: what gloo says where another operation timed out before.
GLOO_CLOSED = "RuntimeError: Application timeout caused pair closure"
CUDA_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 47.54 GiB "
    "of which 1.03 GiB is free."
)
# Python 3.11, and safetensors 0.6.
DISK = "OSError: [Errno 28] No space left on device: '/rlhf/work/checkpoints/checkpoint-10/model.safetensors'"
DISK_SAFETENSORS = (
    "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)"
)
CPU_OOM = "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"

KNOWN = [
    (TORCH_SHM, FailureKind.SHM_EXHAUSTED),
    (TORCH_BUS, FailureKind.SHM_EXHAUSTED),
    (NCCL_SHM, FailureKind.SHM_EXHAUSTED),
    (NCCL_EXTEND, FailureKind.SHM_EXHAUSTED),
    (NCCL_TIMEOUT, FailureKind.NCCL_TIMEOUT),
    (GLOO_TIMEOUT, FailureKind.NCCL_TIMEOUT),
    (GLOO_CLOSED, FailureKind.NCCL_TIMEOUT),
    (CUDA_OOM, FailureKind.OUT_OF_GPU_MEMORY),
    (DISK, FailureKind.DISK_FULL),
    (DISK_SAFETENSORS, FailureKind.DISK_FULL),
    (CPU_OOM, FailureKind.OUT_OF_HOST_MEMORY),
]


def test_a_result_with_exit_code_zero_is_a_true_result() -> None:
    assert classify(SPEC, make_exit(), make_result(SPEC)) is None


def test_a_result_is_not_believed_of_a_program_that_died_afterwards() -> None:
    failure = classify(SPEC, make_exit(exit_code=139), make_result(SPEC))
    assert failure is not None
    assert failure.kind is FailureKind.UNEXPECTED
    assert "139 (SIGSEGV)" in failure.message


def test_a_result_of_another_key_is_no_result() -> None:
    other = make_result(make_spec(key="cd" * 32))
    failure = classify(SPEC, make_exit(), other)
    assert failure is not None
    assert "exit code 0 but wrote no outcome" in failure.message


def test_the_programs_own_failure_is_kept() -> None:
    own = make_failure(SPEC, "bad_data", "zero rows left")
    assert classify(SPEC, make_exit(exit_code=1), own) == own


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"exit_code": 0}, FailureKind.UNEXPECTED, "exit code 0 but wrote no outcome"),
        ({"exit_code": 1}, FailureKind.UNEXPECTED, "exit code 1 and wrote no outcome"),
        ({"exit_code": 137, "oom_killed": True}, FailureKind.OUT_OF_HOST_MEMORY, "2 GiB"),
        ({"exit_code": 1, "oom_killed": True}, FailureKind.OUT_OF_HOST_MEMORY, "exit code 1"),
        ({"exit_code": 3, "oom_killed": True}, FailureKind.OUT_OF_HOST_MEMORY, "exit code 3"),
        ({"exit_code": 137}, FailureKind.CONTAINER_LOST, "killed (137, not out of memory)"),
        (
            {"exit_code": 137, "state": {"daemon_unreachable_s": "12"}},
            FailureKind.CONTAINER_LOST,
            "daemon was away for 12 s",
        ),
        (
            {"exit_code": 143, "state": {"daemon_unreachable_s": "12"}},
            FailureKind.CONTAINER_LOST,
            "(exit code 143 (SIGTERM))",
        ),
        ({"exit_code": None, "oom_killed": True}, FailureKind.OUT_OF_HOST_MEMORY, "(exit code unknown)"),
        ({"exit_code": 200}, FailureKind.UNEXPECTED, "exit code 200 and wrote no outcome"),
        ({"exit_code": 143}, FailureKind.CANCELLED, "it was stopped (143"),
        ({"exit_code": 135}, FailureKind.SHM_EXHAUSTED, "64 MiB"),
        ({"exit_code": 139}, FailureKind.UNEXPECTED, "139 (SIGSEGV)"),
        ({"exit_code": 137, "timed_out": True}, FailureKind.TIMED_OUT, "timeout_s of 60"),
        ({"exit_code": 143, "cancelled": True}, FailureKind.CANCELLED, "cancelled"),
        ({"exit_code": None, "lost": True, "state": {"problem": "gone"}}, FailureKind.CONTAINER_LOST, "gone"),
    ],
)
def test_a_death_without_an_outcome_is_named(changes: dict[str, object], kind: FailureKind, words: str) -> None:
    failure = classify(SPEC, make_exit(**changes), None)
    assert failure is not None
    assert failure.kind is kind
    assert words in failure.message
    assert kind.change_before_retry in failure.message


@pytest.mark.parametrize(("text", "kind"), KNOWN)
def test_a_known_text_in_the_log_names_the_death(text: str, kind: FailureKind) -> None:
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=("step 3", text, "bye")), None)
    assert failure is not None
    assert failure.kind is kind
    assert text[:60] in failure.message


@pytest.mark.parametrize(("text", "kind"), KNOWN)
def test_an_unexpected_failure_is_refined_by_its_traceback(text: str, kind: FailureKind) -> None:
    own = make_failure(SPEC, "unexpected", "RuntimeError: something", "Traceback (most recent call last):", text)
    failure = classify(SPEC, make_exit(exit_code=1), own)
    assert failure is not None
    assert failure.kind is kind
    assert text in failure.evidence, "the program's own evidence stays"


def test_what_the_program_caught_counts_before_older_trouble_in_the_log() -> None:
    own = make_failure(SPEC, "unexpected", TORCH_SHM)
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=(CUDA_OOM,)), own)
    assert failure is not None
    assert failure.kind is FailureKind.SHM_EXHAUSTED


def test_a_worker_that_the_kernel_killed_makes_an_unexpected_failure_a_memory_failure() -> None:
    own = make_failure(SPEC, "unexpected", "RuntimeError: DataLoader worker (pid 9) exited unexpectedly")
    failure = classify(SPEC, make_exit(exit_code=1, oom_killed=True), own)
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_HOST_MEMORY
    assert "exited unexpectedly" in failure.message


def test_an_unknown_unexpected_failure_stays_as_it_is() -> None:
    own = make_failure(SPEC, "unexpected", "KeyError: 'prompt'")
    assert classify(SPEC, make_exit(exit_code=1, log_tail=("fine",)), own) == own


def test_a_stage_that_saved_at_its_time_out_timed_out_and_was_not_cancelled() -> None:
    own = make_failure(SPEC, "cancelled", "The stage was stopped (SIGTERM).")
    failure = classify(SPEC, make_exit(exit_code=1, timed_out=True), own)
    assert failure is not None
    assert failure.kind is FailureKind.TIMED_OUT
    assert classify(SPEC, make_exit(exit_code=1, cancelled=True), own) == own


def test_a_stage_that_the_daemons_restart_stopped_was_not_cancelled() -> None:
    own = make_failure(SPEC, "cancelled", "The stage was stopped (SIGTERM).")
    failure = classify(SPEC, make_exit(exit_code=1, state={"daemon_unreachable_s": "5"}), own)
    assert failure is not None
    assert failure.kind is FailureKind.CONTAINER_LOST
    assert failure.kind.retry_can_help
    assert "daemon was away for 5 s" in failure.message


def test_a_stage_that_survived_a_daemon_restart_is_judged_by_itself() -> None:
    away = {"daemon_unreachable_s": "5"}
    assert classify(SPEC, make_exit(state=away), make_result(SPEC)) is None
    failure = classify(SPEC, make_exit(exit_code=1, state=away), None)
    assert failure is not None
    assert failure.kind is FailureKind.UNEXPECTED


def test_the_evidence_is_bounded() -> None:
    tail = tuple("x" * 10_000 for _ in range(5000))
    state = {str(number): "y" * 10_000 for number in range(500)}
    evidence = exit_evidence(make_exit(log_tail=tail, state=state))
    assert len(evidence) <= 62
    assert max(len(line) for line in evidence) <= MAX_LINE_CHARACTERS


def test_out_of_memory_names_the_limit_and_where_it_comes_from() -> None:
    reason = (
        "host_memory_gib of profile `test` is not set; derived 13.2 GiB from the 16.0 GiB of this machine less 2.80 "
        "GiB for servers, orchestrator and system"
    )
    required = SPEC.required.model_copy(update={"host_memory_bytes": 13 * 2**30, "host_memory_reason": reason})
    spec = SPEC.model_copy(update={"required": required})
    failure = classify(spec, make_exit(exit_code=137, oom_killed=True), None)
    assert failure is not None and failure.kind is FailureKind.OUT_OF_HOST_MEMORY
    assert reason in failure.message


def test_a_silent_stage_is_named_with_its_limit() -> None:
    failure = classify(make_spec(silence_limit_s=90), make_exit(exit_code=137, stalled=True), None)
    assert failure is not None and failure.kind is FailureKind.STALLED
    assert "no sign of life for 90 s (runtime.silence_limit_s)" in failure.message


def test_of_a_long_line_the_part_that_names_the_death_is_quoted() -> None:
    line = "before " * 200 + CUDA_OOM + " after" * 200
    failure = classify(SPEC, make_exit(exit_code=1, log_tail=(line,)), None)
    assert failure is not None and failure.kind is FailureKind.OUT_OF_GPU_MEMORY
    assert CUDA_OOM[:40] in failure.message and "…" in failure.message
    assert len(failure.message) < 1000
    short = classify(SPEC, make_exit(exit_code=1, log_tail=(CUDA_OOM,)), None)
    assert short is not None and "…" not in short.message


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - {FailureKind.CANCELLED}))
@pytest.mark.parametrize("changes", [{"timed_out": True}, {"state": {"daemon_unreachable_s": "5"}}])
def test_only_a_cancelled_stage_is_said_to_have_been_stopped_from_outside(
    kind: FailureKind, changes: dict[str, object]
) -> None:
    own = make_failure(SPEC, kind.value, "what the program itself found")
    assert classify(SPEC, make_exit(exit_code=1, **changes), own) == own


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - {FailureKind.UNEXPECTED, FailureKind.CANCELLED}))
def test_a_kind_that_the_program_named_is_not_refined(kind: FailureKind) -> None:
    own = make_failure(SPEC, kind.value, "what the program itself found")
    assert classify(SPEC, make_exit(exit_code=1, oom_killed=True, log_tail=(CUDA_OOM, TORCH_SHM)), own) == own


def test_a_full_shared_memory_is_named_with_its_size_in_mib() -> None:
    spec = make_spec(profile=make_profile(shm_size_gib=16))
    failure = classify(spec, make_exit(exit_code=135), None)
    assert failure is not None
    assert "shm_size_gib of profile `test` gives 16,384 MiB" in failure.message
