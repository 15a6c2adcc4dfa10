"""From which checkpoint a training goes on: the newest one that is whole, and no silent start at step 0."""

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from containers.contracts.spec import StageSpec
from containers.harness.errors import MissingPrerequisiteError
from containers.harness.recorder import Recorder
from containers.training.checkpoints import (
    best_of,
    checkpoint_flaw,
    checkpoint_step,
    checkpoints_in,
    delete_discarded,
    discard,
    was_finished,
)

_SET_ASIDE_PREFIX = "damaged-"
_NUM_KEPT_SET_ASIDE = 2


def newest_valid_checkpoint(folder: Path, *, spec: StageSpec, recorder: Recorder) -> Path | None:
    """The checkpoint with the most steps whose files, and whose best checkpoint's files, match their manifests.

    Reads no more checkpoints than it takes to find it. The newer, damaged ones are renamed to `damaged-checkpoint-…`,
    of which the newest two are kept; those that were never finished hold nothing to go on from and are deleted. Each
    is noted.

    Args:
        folder: where the checkpoints of one stage key lie; need not exist.

    Returns:
        None where training starts at step 0: nothing was ever finished, or `spec.start_over_if_damaged` allows it.

    Raises:
        MissingPrerequisiteError: checkpoints were finished, and none can be used. Nothing was moved or deleted, for a
            disk that cannot be read may be readable again.
    """
    delete_discarded(folder)
    flaw_of = functools.cache(functools.partial(checkpoint_flaw, spec=spec))
    flaws: dict[Path, str] = {}
    for checkpoint in checkpoints_in(folder):
        flaw = flaw_of(checkpoint) or _flaw_of_best(checkpoint, flaw_of)
        if not flaw:
            _put_away(flaws, recorder)
            return checkpoint
        flaws[checkpoint] = flaw
    if any(map(was_finished, flaws)) and not spec.start_over_if_damaged:
        raise MissingPrerequisiteError(_nothing_usable(flaws, spec))
    _put_away(flaws, recorder)
    if flaws:
        recorder.note("No valid checkpoint, starting at step 0.")
    return None


def _flaw_of_best(checkpoint: Path, flaw_of: Callable[[Path], str]) -> str:
    """Why training could go on from this one but not to its end, where the best checkpoint is needed."""
    try:
        best = best_of(checkpoint)
    except (OSError, ValueError) as error:
        return f"its state cannot be read: {error}"
    flaw = flaw_of(best) if best else ""
    return f"the best checkpoint so far, {best.name}, is lost: {flaw}" if best and flaw else ""


def _put_away(flaws: Mapping[Path, str], recorder: Recorder) -> None:
    """Take what training does not go on from out of the way of the checkpoints that are written next."""
    for checkpoint, flaw in flaws.items():
        if was_finished(checkpoint):
            target = checkpoint.with_name(_SET_ASIDE_PREFIX + checkpoint.name)
            shutil.rmtree(target, ignore_errors=True)
            checkpoint.rename(target)
            recorder.note(f"{checkpoint.name} was set aside as {target.name}: {flaw}.")
            _keep_newest_set_aside(checkpoint.parent)
        else:
            discard(checkpoint)
            recorder.note(f"{checkpoint.name} was deleted: {flaw}.")


def _keep_newest_set_aside(folder: Path) -> None:
    def step(path: Path) -> int:
        return checkpoint_step(path.with_name(path.name.removeprefix(_SET_ASIDE_PREFIX))) or 0

    for path in sorted(folder.glob(f"{_SET_ASIDE_PREFIX}*"), key=step, reverse=True)[_NUM_KEPT_SET_ASIDE:]:
        shutil.rmtree(path, ignore_errors=True)


def _nothing_usable(flaws: Mapping[Path, str], spec: StageSpec) -> str:
    found = "\n".join(f"  {checkpoint.name}: {flaw}" for checkpoint, flaw in flaws.items())
    return (
        f"{spec.stage} has checkpoints, and none can be used any more, so it would start again at step 0:\n{found}\n"
        f"Bring the files back into work/{spec.stage}/{spec.key}/checkpoints of the store; or let it start over: set "
        "runtime.start_over_if_damaged to true, or delete that folder."
    )
