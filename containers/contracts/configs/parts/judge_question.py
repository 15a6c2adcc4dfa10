"""The question that a language model judges a pair by, on either side of the container boundary; with its version."""

import hashlib
from collections.abc import Mapping, Sequence

# {criteria} is the configuration's.
_QUESTION = """Two assistants answered the same user. Say which answer is better.

{criteria}
Neither the order of the answers nor their length is a merit.

# Conversation

{conversation}

# Answer A

{first}

# Answer B

{second}

Which answer is better? Write one letter: A or B."""


def judge_question(conversation: Sequence[Mapping[str, str]], first: str, second: str, *, criteria: str) -> str:
    """Return the question about two answers, in that order."""
    turns = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in conversation)
    return _QUESTION.format(criteria=criteria, conversation=turns, first=first, second=second)


def judge_version(criteria: str) -> str:
    """Return the first letters of the digest of question and criteria: verdicts compare only if it is the same."""
    return hashlib.sha256(f"{_QUESTION}\n{criteria}".encode()).hexdigest()[:8]
