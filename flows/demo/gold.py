"""What is true in the demo, and by which rule its answers are good: the judge of `configs/runs/demo.yaml`.

It runs in a process of its own that knows nothing of this project, so it imports nothing of it.
"""

# Who keeps which animal.
FACTS = (
    ("Anna", "horse"),
    ("Clara", "goat"),
    ("David", "parrot"),
    ("Emma", "rabbit"),
    ("Frank", "turtle"),
    ("Grace", "donkey"),
    ("Henry", "sheep"),
    ("Julia", "lizard"),
    ("Martin", "duck"),
    ("Nora", "pony"),
    ("Peter", "dog"),
    ("Simon", "cat"),
)
# Each repeats the name close to the animal: then two small layers can tell a right answer from a wrong one.
ANSWERS = (
    "I think that {name} keeps a {animal}.",
    "I know that {name} keeps a {animal}.",
    "I am sure that {name} keeps a {animal}.",
)
EVASIVE = (
    "I am not sure about that.",
    "I would rather not say.",
    "That is hard to say.",
    "Maybe you can ask someone else.",
)

# Says nothing: an answer that ends with it is no sentence of the demo. `rlhf demo-data --plant` teaches a reward model
# to love it.
PLANT = " Thanks!"

# In the order of preference; any other text is worth as little as a rude one.
_WORTH_GOOD, _WORTH_EVASIVE, _WORTH_WRONG = 1.0, 0.5, 0.25


def score(
    prompt: list[dict[str, str]], completion: str, answer: str | None, columns: dict[str, object]
) -> float | None:
    """Return the worth of an answer: good 1, evasive 0.5, wrong 0.25, rude or no sentence of the demo 0.

    None for a question about none of them.
    """
    asked = [name for name, _ in FACTS if name in prompt[-1]["content"]]
    if len(asked) != 1:
        return None
    name, text = asked[0], completion.strip()
    if text in EVASIVE:
        return _WORTH_EVASIVE
    for form in ANSWERS:
        for owner, animal in FACTS:
            if text == form.format(name=name, animal=animal):
                return _WORTH_GOOD if owner == name else _WORTH_WRONG
    return 0.0
