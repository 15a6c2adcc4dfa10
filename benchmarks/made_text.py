"""Plausible English sentences from a seed, of common words and made names, and one paragraph in ten languages."""

import random
from itertools import product
from math import exp


def _each(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The first article of the Universal Declaration of Human Rights, as the United Nations publish it.
ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience "
    "and should act towards one another in a spirit of brotherhood.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt "
    "und sollen einander im Geist der Brüderlichkeit begegnen.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y "
    "conciencia, deben comportarse fraternalmente los unos con los otros.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di ragione e di "
    "coscienza e devono agire gli uni verso gli altri in spirito di fratellanza.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e de "
    "consciência, devem agir uns para com os outros em espírito de fraternidade.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd met verstand en "
    "geweten, en behoren zich jegens elkander in een geest van broederschap te gedragen.",
    "sv": "Alla människor är födda fria och lika i värde och rättigheter. De är utrustade med förnuft och samvete och "
    "bör handla gentemot varandra i en anda av broderskap.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i "
    "sumieniem i powinni postępować wobec innych w duchu braterstwa.",
    "fi": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan. Heille on annettu järki ja "
    "omatunto, ja heidän on toimittava toisiaan kohtaan veljeyden hengessä.",
}
_SENTENCES = (
    "The {a} {n} of the {n2} {v} the {a2} {n3} because {name} asked for it",
    "{name} {v} a {a} {n} and then looked at the {n2} near the {a2} {n3}",
    "In the {n} of {name} there is a {a} {n2} that {v} every {a2} {n3}",
    "You should first clean the {a} {n}, and after that {name} {v} the {n2} with a {n3}",
    "Most people think that a {a} {n} {v} the {n2}, but {name} says that the {n3} is {a2}",
    "If the {n} is {a}, then {name} usually {v} the {a2} {n2} before the {n3}",
)
_QUESTIONS = (
    "How can I keep the {a} {n} when {name} {v} the {n2} of my {a2} {n3}?",
    "What is the difference between a {a} {n} and the {a2} {n2} that {name} {v} with a {n3}?",
    "Why do people say that {name} {v} the {a} {n} near the {n2} of the {a2} {n3}?",
    "Can you tell me which {n} {v} a {a} {n2} and where {name} found the {a2} {n3}?",
)
_SHORT_QUESTIONS = (
    "Why is the {n} of {name} {a}?",
    "Who {v} the {a} {n}?",
    "What is a {a} {n} for?",
    "Where did {name} put the {n}?",
    "Is the {n} {a} or {a2}?",
)
_FEW_WORDS = 14
_NOUNS = _each(
    "house garden river kitchen window letter engine bridge market teacher doctor farmer winter summer morning evening "
    "school picture table village mountain forest island harbour station ticket paper pencil camera guitar piano "
    "recipe bread cheese butter pepper onion carrot apple lemon orange coffee sugar water flour salt oven bottle "
    "blanket pillow mirror carpet ladder hammer needle thread button jacket shirt pocket basket bicycle wagon tractor "
    "ship sailor captain painter singer writer lawyer judge soldier nurse baker brother sister cousin uncle neighbour"
)
_VERBS = _each(
    "moved cleaned painted carried found changed opened closed washed covered bought sold borrowed returned described "
    "measured repaired built planted watered cooked tasted watched followed remembered explained drew counted lifted "
    "pushed pulled turned filled emptied collected compared finished started stopped prepared"
)
_ADJECTIVES = _each(
    "old new small large green yellow quiet noisy heavy light narrow wide cheap expensive simple difficult warm cold "
    "clean dirty empty full early late famous strange gentle strong weak broken wooden golden silver modern ancient "
    "local foreign careful lucky hungry tired"
)
_BEGINNINGS = _each("Ash Black Brad Clay Green Hart Lock Mill Stan West Win Wood Bel Cor Dal El Fen Gar Hol Ken")
_ENDINGS = _each("ford ton field ley man wood by worth dale ham stone mere wick gate more")
_NAMES = tuple("".join(parts) for parts in product(_BEGINNINGS, _ENDINGS))


def length(rng: random.Random, *, median: float, spread: float) -> int:
    """Return a log-normal number of words, at least 2.

    Args:
        spread: standard deviation of the logarithm.
    """
    return max(2, round(median * exp(rng.gauss(0, spread))))


def words(rng: random.Random, count: int) -> str:
    """Return sentences, cut after so many words."""
    found: list[str] = []
    while len(found) < count:
        found += f"{_filled(rng, _SENTENCES)}.".split()
    return " ".join(found[:count])


def question(rng: random.Random, count: int) -> str:
    """Return about so many words, of which the last are a question; at least the question."""
    asked = _filled(rng, _SHORT_QUESTIONS if count < _FEW_WORDS else _QUESTIONS)
    left = count - len(asked.split())
    return f"{words(rng, left)}. {asked}" if left > 0 else asked


def _filled(rng: random.Random, forms: tuple[str, ...]) -> str:
    nouns, adjectives = rng.sample(_NOUNS, 3), rng.sample(_ADJECTIVES, 2)
    drawn = {"n": nouns[0], "n2": nouns[1], "n3": nouns[2], "a": adjectives[0], "a2": adjectives[1]}
    return rng.choice(forms).format(**drawn, v=rng.choice(_VERBS), name=rng.choice(_NAMES))
