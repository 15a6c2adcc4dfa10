"""Why a model or dataset cannot be used as configured.

SourceError                    base: `problem` says what and why, `advice` what to do
├── SourceNotFoundError        nothing is there: no such path, repository, revision or file
├── SourceAccessError          it is there, or may be, and this user may not read it
├── HubUnreachableError        the hub did not answer, or answered nonsense
└── UnusableSourceError        it is there and cannot be used: pickled weights, no chat template, no data
"""


class SourceError(Exception):
    """Base; the message is `problem` followed by `advice`."""

    def __init__(self, problem: str, advice: str) -> None:
        self.problem = problem
        self.advice = advice
        super().__init__(f"{problem} {advice}")


class SourceNotFoundError(SourceError):
    """Nothing is there."""


class SourceAccessError(SourceError):
    """This user may not read it."""


class HubUnreachableError(SourceError):
    """The hub did not answer."""


class UnusableSourceError(SourceError):
    """It is there and cannot be used."""
