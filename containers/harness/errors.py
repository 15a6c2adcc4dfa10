"""Errors of stage programs; each kind becomes the `kind` of the stage's failure.

StageError
├── BadConfigError              the configuration cannot work; nothing was spent
├── BadDataError                the data cannot be used: zero rows, unknown schema, too many malformed rows
├── MissingPrerequisiteError    something that the spec promises is not there: input, memory, GPU
├── DivergedError               loss, gradient, reward or score is not finite
├── NoSignalError               the rewards tell nothing about what the policy writes
└── JudgeAwaitedError           a judge that no stage reaches has yet to judge pairs; nothing is wrong
"""

from containers.contracts.outcome import FailureKind


class StageError(Exception):
    """Base: the message says what, why, and what to do."""

    kind = FailureKind.UNEXPECTED


class BadConfigError(StageError):
    """The configuration cannot work."""

    kind = FailureKind.BAD_CONFIG


class BadDataError(StageError):
    """The data cannot be used."""

    kind = FailureKind.BAD_DATA


class MissingPrerequisiteError(StageError):
    """Something that the spec promises is not there."""

    kind = FailureKind.MISSING_PREREQUISITE


class DivergedError(StageError):
    """A number that training depends on is not finite; the message names step and number."""

    kind = FailureKind.DIVERGED


class NoSignalError(StageError):
    """The rewards tell nothing about what the policy writes, so training would teach it nothing."""

    kind = FailureKind.NO_SIGNAL


class JudgeAwaitedError(StageError):
    """Pairs wait in the work folder for a judge that no stage reaches; the stage goes on once it has judged."""

    kind = FailureKind.AWAITS_JUDGE
