"""Errors of a data file that cannot be read, in two parts: what is wrong with it, and what to do."""


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


class UnknownSchemaError(UnreadableFileError):
    """The rows have the columns of no schema: `problem` shows the columns found, `advice` those wanted."""
