"""Errors of a data file that cannot be read, in two parts: what is wrong with it, and what to do."""

from containers.contracts.file_limits import MAX_EXPANSION


class UnreadableFileError(ValueError):
    """A data file is damaged, is no data, or would take far more memory than its size.

    Attributes:
        problem: what is wrong, to follow the file's name: `is a damaged gzip file after line 3: …`.
        advice: what to do, a sentence or two.
    """

    def __init__(self, name: str, problem: str, advice: str) -> None:
        super().__init__(f"{name} {problem} {advice}")
        self.problem = problem
        self.advice = advice


def bomb(name: str, num_bytes: int, *, packed_bytes: int) -> UnreadableFileError:
    """The error of a file of `packed_bytes` that unpacks to `num_bytes`, or more."""
    return UnreadableFileError(
        name,
        f"expands more than {MAX_EXPANSION}-fold ({num_bytes:,} bytes or more, from {packed_bytes:,}). No text does "
        f"that; it looks like a decompression bomb.",
        "Check where it comes from.",
    )


class UnknownSchemaError(UnreadableFileError):
    """The rows have the columns of no schema: `problem` shows the columns found, `advice` those wanted."""
