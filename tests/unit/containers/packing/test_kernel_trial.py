"""Kernels that cannot be compiled are found out before anything is loaded."""

from typing import Any

import pytest
import torch

from containers.harness.errors import MissingPrerequisiteError
from containers.packing import kernel
from containers.packing.kernel import try_kernels

pytestmark = pytest.mark.stages


def test_kernels_that_run_are_passed_over_in_silence() -> None:
    try_kernels(torch.device("cpu"))


def test_a_missing_compiler_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def apply(*_: Any) -> Any:
            raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(kernel, "ChunkedLogProbFunction", Broken)
    with pytest.raises(MissingPrerequisiteError, match=r"Failed to find C compiler.*gcc"):
        try_kernels(torch.device("cpu"))
