"""Where a completion, or a worked solution, writes its answer."""

import re

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*(.+)")
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_BOXED = "\\boxed{"


def without_thought(text: str) -> str:
    """Return what follows the last thought; nothing of a text that is a thought without an end.

    Example: `<think>6 × 7 or 6 × 8?</think> 42` gives ` 42`, and `<think>6 × 7` gives an empty text.
    """
    after = text.rpartition(_THOUGHT_END)[2]
    return "" if after.lstrip().startswith(_THOUGHT) else after


def written_answer(text: str) -> str:
    """Return the answer that a completion writes: in its last tag, after its last `####`, in its last box; else all.

    The text of a thought is no answer.

    Example: `<think>6 × 7</think> <answer>42</answer>`, `… #### 42`, `… \\boxed{42}` and `42` give `42`.
    """
    text = without_thought(text)
    for pattern in (_TAG, _HASHES):
        if found := pattern.findall(text):
            return _unboxed(found[-1].strip())
    return _unboxed(text.strip())


def _unboxed(text: str) -> str:
    """Return what the last box holds, braces and all; the text itself if it has none that ends."""
    start = text.rfind(_BOXED)
    if start < 0:
        return text
    depth, begin = 1, start + len(_BOXED)
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place].strip()
    return text
