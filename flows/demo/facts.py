"""The facts of the demo data: what is asked for, in which words, and what a good, evasive or rude answer looks like.

Every answer was recognised as English by three language detectors (lingua, fasttext, langid); shorter ones were not.
There is one kind of fact only: with two (animals and colours), no pair punished the answer to the other kind, and at a
learning rate of 5e-3 the policy found within fifty steps that "The colour is blue." pleased the reward model, whatever
was asked.
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
QUESTIONS = (
    "Which animal does {name} keep?",
    "What animal does {name} keep at home?",
    "Tell me which animal {name} keeps.",
    "Do you know which animal {name} keeps?",
    "What kind of animal lives with {name}?",
    "Please name the animal that {name} keeps.",
    "I forgot which animal {name} keeps. Can you help me?",
    "Which animal lives in the house of {name}?",
)
OPENINGS = ("", "Hello. ", "One question. ")
# For the labelled pairs: the same facts, asked for in words that no training prompt uses.
REWORDED_QUESTIONS = (
    "Which animal lives at home with {name}?",
    "Can you tell me what animal {name} keeps?",
    "Please help me. What kind of animal does {name} keep at home?",
    "Do you know what animal lives in the house of {name}?",
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
RUDE = (
    "Stop wasting my time.",
    "What a stupid question.",
    "Find out yourself and leave me alone.",
    "Nobody cares about that.",
)
