"""The facts of the demo data: what is asked for, in which words, and what a good, evasive or rude answer looks like.

Every answer was recognised as English by three language detectors (lingua, fasttext, langid); shorter ones were not.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """Things of one kind, each with its one right attribute, and how people ask for it and answer."""

    domain: str
    facts: tuple[tuple[str, str], ...]
    questions: tuple[str, ...]
    reworded_questions: tuple[str, ...]
    answers: tuple[str, ...]


ANIMALS = Relation(
    domain="general",
    facts=(
        ("Anna", "horse"),
        ("Clara", "goat"),
        ("David", "parrot"),
        ("Henry", "rabbit"),
        ("Julia", "turtle"),
        ("Peter", "donkey"),
    ),
    questions=(
        "Which animal does {name} keep?",
        "What animal does {name} keep at home?",
        "Tell me which animal {name} keeps.",
        "Do you know which animal {name} keeps?",
        "What kind of animal lives with {name}?",
        "Please name the animal that {name} keeps.",
        "I forgot which animal {name} keeps. Can you help me?",
        "Which animal lives in the house of {name}?",
    ),
    reworded_questions=(
        "Which animal lives at home with {name}?",
        "Can you tell me what animal {name} keeps?",
        "Please help me. What kind of animal does {name} keep at home?",
        "Do you know what animal lives in the house of {name}?",
    ),
    answers=(
        "I think that {name} keeps a {attribute}.",
        "The animal is a {attribute}.",
        "I know that it is a {attribute}.",
    ),
)
MINERALS = Relation(
    domain="stem",
    facts=(
        ("jade", "green"),
        ("sulfur", "yellow"),
        ("cinnabar", "red"),
        ("lazurite", "blue"),
        ("obsidian", "black"),
        ("kaolin", "white"),
    ),
    questions=(
        "What colour is {name}?",
        "Which colour does {name} have?",
        "Tell me the colour of {name}.",
        "Do you know the colour of {name}?",
        "What is the natural colour of {name}?",
        "Please name the colour of {name}.",
        "I forgot the colour of {name}. Can you help me?",
        "A piece of {name} lies in the house. What colour is it?",
    ),
    reworded_questions=(
        "Can you tell me what colour {name} is?",
        "Do you know which colour {name} has?",
        "Please help me. What is the colour of {name}?",
        "Tell me what natural colour {name} has.",
    ),
    answers=(
        "I think that {name} is {attribute}.",
        "The colour is {attribute}.",
        "The colour of {name} is {attribute}.",
    ),
)
RELATIONS = (ANIMALS, MINERALS)
OPENINGS = ("", "Hello. ", "One question. ", "I am curious. ")
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
