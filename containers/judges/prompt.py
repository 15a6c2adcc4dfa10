"""The question that a language model judges by, with its version."""

import hashlib

from containers.judges.base import Pair

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


def question(pair: Pair, *, policy_first: bool, criteria: str) -> str:
    """Return the question about a pair in that order."""
    answers = (pair.policy.text, pair.reference.text)
    first, second = answers if policy_first else answers[::-1]
    turns = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in pair.policy.conversation)
    return _QUESTION.format(criteria=criteria, conversation=turns, first=first, second=second)


def version(criteria: str) -> str:
    """Return the first letters of the digest of question and criteria: two verdicts compare only if it is the same."""
    return hashlib.sha256(f"{_QUESTION}\n{criteria}".encode()).hexdigest()[:8]
