"""When two prompts are the same prompt: the identity by which training and evaluation are kept apart. Pure."""

import hashlib
from collections.abc import Iterable, Mapping

_CHARACTERS = 16


def prompt_identity(turns: Iterable[Mapping[str, str]]) -> str:
    """16 hexadecimal digits over roles and texts; case and white space do not tell prompts apart."""
    parts = (part for turn in turns for part in (turn["role"], " ".join(turn["content"].lower().split())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_CHARACTERS]
