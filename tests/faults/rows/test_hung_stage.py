"""A stage that lives and does nothing: the interpreter is locked, or a data loader waits for what never comes."""

import os
from pathlib import Path

import pytest
from fault_rows import Fault
from reference import REWARD, Reference
from stage_alone import StageAlone
from tiny_project import TinyProject, stage_processes

from containers.contracts.outcome import FailureKind

pytestmark = [pytest.mark.slow, pytest.mark.stages]


@pytest.mark.parametrize(
    ("how", "text", "where"),
    [
        ("gil", "the interpreter is locked for ever (a C call that keeps the GIL)", "hold_the_gil"),
        ("loader", "the data loader waits for ever for its next batch", "wait_for_ever"),
    ],
    ids=["gil", "loader"],
)
def test_a_stage_hangs(
    tiny: TinyProject, undisturbed: Reference, fault: Fault, tmp_path: Path, how: str, text: str, where: str
) -> None:
    fault.describe("training", f"{REWARD}, step 13: {text}", parts="stage process")
    limit_s = 120  # on a busy machine the imports alone take a minute, in silence
    stage = StageAlone.of(tiny, REWARD, tmp_path).changed(silence_limit_s=limit_s)
    failure = stage.attempt(how, "13")
    assert failure is not None and failure.kind is FailureKind.STALLED, failure
    assert failure.kind.retry_can_help
    assert f"no sign of life for {limit_s} s" in failure.message
    assert where in "\n".join(failure.evidence), "the stacks say where"
    assert not list(stage_processes(os.getpid())), "nothing of it is left"
    fault.recovery_starts()
    assert stage.attempt() is None
    assert stage.resumed_from() == 10
    stage.assert_bit_for_bit(undisturbed)
    fault.recovered(
        seen=f"killed after {limit_s} s without a sign of life (runtime.silence_limit_s, an hour unless set), "
        "classified stalled, its stacks in log and evidence; may be tried again, and goes on bit for bit",
        repeated=f"{stage.repeated} steps of 40 (saved every 5)",
    )
