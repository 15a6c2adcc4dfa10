"""Do before the first step what ends a training: save the model, load its copies, compare. A flaw shows in minutes.

The trial has a model of its own, so the training that follows is the same byte for byte as without it.
"""

import gc
import logging
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from containers.distributed.ranks import is_first_rank, of_all_ranks, patient_group
from containers.formatting import duration, size
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, StageError
from containers.scoring.copies import TriedCopies

logger = logging.getLogger(__name__)

TRIAL_FOLDER = "copy_trial"


def try_copies(context: StageContext, tried: Callable[[StageContext], TriedCopies]) -> None:
    """Save, load and compare copies on the first rank, and note the result; the others wait.

    Args:
        tried: does it, into the output of the context that it is given.

    Raises:
        BadConfigError: on every rank; a copy cannot be loaded, or is not the model that was saved.
        StageError: likewise; the start model is at fault.
    """
    problem, failure, group = "", None, patient_group()
    if is_first_rank():
        started_at_s, folder = time.monotonic(), context.work / TRIAL_FOLDER
        with _random_state_kept(), _emptied(folder):
            try:
                found = tried(replace(context, work=folder))
                problem = _why_not(found)
            except Exception as error:
                if isinstance(error, StageError) and str(folder) in str(error):
                    problem = f"it could not be loaded again: {error}"
                else:  # it is the start model's, or a GPU is full
                    failure = error if isinstance(error, StageError | torch.OutOfMemoryError) else _told(error)
            written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if not problem and failure is None:
            context.recorder.note(_text(found, took_s=time.monotonic() - started_at_s, written=written))
    problem, failure = of_all_ranks((problem, failure), group=group)[0]
    if failure is not None:
        raise failure
    if problem:
        raise BadConfigError(
            f"Before the first step the model was saved as at the end of the training, and {problem} Nothing was "
            "trained. Use other layers for the adapters (lora.targets, lora.exclude), another quantization or another "
            "start model; if none helps, report this message with the versions of transformers and peft."
        )


def _told(error: Exception) -> StageError:
    """Log an unexpected error, and return one that other ranks can be sent."""
    logger.exception("The trial of the copies failed.")
    return StageError(f"The trial of the copies failed, and nothing was trained: {type(error).__name__}: {error}")


def _why_not(found: TriedCopies) -> str:
    """Return which copies are not the saved model, as a clause with a full stop; empty if all are."""
    wrong = [copy for copy in found.copies if not copy.difference <= copy.allowed]
    if not wrong:
        return ""
    told = " and ".join(
        f"{copy.name}/, loaded from disk, is {copy.difference:.3g} {found.unit} away from it (allowed: "
        f"{copy.allowed:.3g})"
        for copy in wrong
    )
    return (
        f"{told}. For this its trained weights were moved at random, by {found.moved:.3g} {found.unit}. So what is "
        "published would not be what was trained."
    )


def _text(found: TriedCopies, *, took_s: float, written: int) -> str:
    told = ", ".join(f"{copy.name}/ by {copy.difference:.2g} (allowed: {copy.allowed:.2g})" for copy in found.copies)
    return (
        f"Before the first step, a trial model, its weights moved at random by {found.moved:.2g} {found.unit}, was "
        f"saved, merged and loaded again; its copies differ from it: {told}. It took {duration(took_s)} and "
        f"{size(written)} of disk, which are free again."
    )


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restore every random state afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """Have an empty folder while this is open, also after an attempt that was killed; then free disk and GPU memory."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
