"""A model that a faster way does not suit is told from a machine that is full and from a person who stops it."""

import pytest
import torch

from containers.models.trial import trial

pytestmark = pytest.mark.stages


def test_what_goes_through_has_no_failure() -> None:
    with trial() as tried:
        value = 1
    assert (tried.failure, value) == ("", 1)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("shapes\n  differ"), "shapes differ"),
        (AttributeError("no head"), "no head"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_the_error_of_a_model_that_is_not_made_for_it_is_kept_in_a_line(error: Exception, line: str) -> None:
    with trial() as tried:
        raise error
    assert tried.failure == line


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
        KeyboardInterrupt(),
    ],
)
def test_a_full_or_broken_machine_and_a_stop_go_on(error: BaseException) -> None:
    with pytest.raises(type(error)), trial():
        raise error
