"""A judge of the demo that is not its gold rule: does a sentence name the right animal, and nothing else?

It knows no worth between right and wrong, and runs in a process of its own that knows nothing of this project.
"""

import re

ANIMALS = {
    "Anna": "horse", "Clara": "goat", "David": "parrot", "Emma": "rabbit", "Frank": "turtle", "Grace": "donkey",
    "Henry": "sheep", "Julia": "lizard", "Martin": "duck", "Nora": "pony", "Peter": "dog", "Simon": "cat",
}  # fmt: skip


def score(
    prompt: list[dict[str, str]], completion: str, answer: str | None, columns: dict[str, object]
) -> float | None:
    """Return 1 for a sentence that ends with the right animal, else 0; None for a question about no known person."""
    asked = [name for name in ANIMALS if name in prompt[-1]["content"]]
    if len(asked) != 1:
        return None
    return float(re.fullmatch(rf"[^.!?]*\b{asked[0]}\b[^.!?]* {ANIMALS[asked[0]]}\.", completion.strip()) is not None)
