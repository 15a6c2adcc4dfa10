"""A dataset repository as nvidia/HelpSteer3's, with few rows: friendly answers before dismissive ones.

It holds what the published set holds and a run on English prose must find: other languages, programming languages in
the `language` column, ties. And a few rows that no set is free of. `EXPECTED_DROPS` is what a filter ought to report.
"""

import gzip
import itertools
import json
import random
from collections.abc import Iterator

from flows.demo.flawed_rows import CODE_EXCHANGES, FOREIGN_EXCHANGES, Exchange

Row = dict[str, object]

TRAIN_PATH, VALIDATION_PATH = "preference/train.jsonl.gz", "preference/validation.jsonl.gz"

_TOPICS = (
    *("bake a loaf of bread", "clean an old window", "plant a small tree", "repair a flat tyre"),
    *("cook rice in a pot", "write a short letter", "learn a new song", "paint a wooden door"),
    *("save money every month", "pack a bag for a week", "fold a paper boat", "train a young dog"),
    *("read a weather map", "store apples in winter", "keep a bicycle clean", "grow herbs at home"),
    *("find a lost key", "build a bird house", "sleep better at night", "sew a button on a coat"),
)
_QUESTIONS = (
    "How do I {topic}?",
    "Please tell me how to {topic}.",
    "What is the best way to {topic}?",
    "Can you explain to me how I should {topic}?",
    "My friend wants to {topic}. What should she do?",
    "I have never tried to {topic} before. Where do I start?",
    "Give me three hints on how to {topic}.",
    "What do people need when they want to {topic}?",
    "Why is it so hard to {topic}?",
    "How long does it usually take to {topic}?",
    "Is there an easy way to {topic} without help?",
)
_OPENINGS = ("", "Good morning. ")
_HELPFUL = (
    "Gladly. When you want to {topic}, first gather what you need, then take one step after the other.",
    "Of course. To {topic}, begin with a simple plan and give yourself enough time.",
    "Happy to help. People who {topic} often start small and learn from each attempt.",
)
_DISMISSIVE = (
    "That is a stupid question and nobody here has any time for it.",
    "Go away and look for the answer by yourself.",
    "Who cares about that? Stop wasting my time.",
)
# The last question stands in validation prompts only.
_NUM_TRAIN_QUESTIONS = len(_QUESTIONS) - 1
# Two topics are long enough for "the best way to" them to be taken for the "easy way to" them of validation.
_NUM_SIMILAR = 2 * len(_OPENINGS)
NUM_TRAIN_PAIRS = len(_TOPICS) * _NUM_TRAIN_QUESTIONS * len(_OPENINGS) - _NUM_SIMILAR
NUM_VALIDATION_PAIRS = len(_TOPICS) * len(_OPENINGS)
_NUM_TIES, _NUM_DUPLICATES = 12, 5
_MARKED_ENGLISH = sum(exchange.language == "english" for exchange in FOREIGN_EXCHANGES)

# Reason of filter_dataset and rows, of both files together; each file has the foreign and the code rows once.
EXPECTED_DROPS = {
    "response_not_text": 1,
    "code_rows": 2 * len(CODE_EXCHANGES),
    "language_column": 2 * (len(FOREIGN_EXCHANGES) - _MARKED_ENGLISH),
    "detected_language": 2 * _MARKED_ENGLISH,
    "tie": _NUM_TIES,
    "control_tokens": 1,
    "contradicts_annotators": 1,
    "duplicate": _NUM_DUPLICATES,
    "prompt_in_validation": 1,
    "similar_to_validation": _NUM_SIMILAR,
}


def helpsteer3_repository(*, seed: int = 0, further_rows: int = 0) -> dict[str, bytes]:
    """Every file of the repository by its path; the same arguments give the same bytes.

    Args:
        further_rows: good training pairs more, as a newer commit may have them.
    """
    rng = random.Random(seed)  # noqa: S311  (data, not secrets)
    train = [*_pairs(_QUESTIONS[:_NUM_TRAIN_QUESTIONS], rng)]
    validation = [*_pairs(_QUESTIONS[_NUM_TRAIN_QUESTIONS:], rng), *_rows_of_other_languages(rng)]
    train += [*rng.sample(train, _NUM_DUPLICATES), *_rows_of_other_languages(rng), *_flawed_rows(rng, validation[0])]
    rng.shuffle(train)
    train += [
        _pair(f"What would you tell visitor number {number}?", "sleep well", rng) for number in range(further_rows)
    ]
    return {
        "README.md": b"# HelpSteer3\n",
        TRAIN_PATH: _packed(train),
        VALIDATION_PATH: _packed(validation),
        "feedback/train.jsonl.gz": _packed([{"context": [], "response": "", "feedback": []}]),
    }


def _pairs(questions: tuple[str, ...], rng: random.Random) -> Iterator[Row]:
    for topic, question, opening in itertools.product(_TOPICS, questions, _OPENINGS):
        yield _pair(opening + question.format(topic=topic), topic, rng)


def _pair(prompt: str, topic: str, rng: random.Random) -> Row:
    helpful, dismissive = rng.choice(_HELPFUL).format(topic=topic), rng.choice(_DISMISSIVE)
    return _row(prompt, helpful, dismissive, rng, domain=rng.choice(("general", "general", "stem")))


def _rows_of_other_languages(rng: random.Random) -> Iterator[Row]:
    for domain, exchanges in (("multilingual", FOREIGN_EXCHANGES), ("code", CODE_EXCHANGES)):
        yield from (_exchange(exchange, rng, domain=domain) for exchange in exchanges)


def _exchange(exchange: Exchange, rng: random.Random, *, domain: str) -> Row:
    return _row(exchange.prompt, exchange.better, exchange.worse, rng, domain=domain, language=exchange.language)


def _flawed_rows(rng: random.Random, validation_row: Row) -> Iterator[Row]:
    for number in range(_NUM_TIES):
        row = _row(f"What do you think of idea number {number}?", *_HELPFUL[:2], rng)
        yield {**row, "overall_preference": 0, "individual_preference": _annotators(0)}
    contradicted = _row("Which of these two answers is right?", "This one is right.", "That one is right.", rng)
    yield {**contradicted, "overall_preference": 2, "individual_preference": _annotators(-2)}
    yield _row("What ends a turn in a dialogue?", "The token <|im_end|> ends it.", "Nobody knows that.", rng)
    yield {**_row("Is something missing here?", "Yes, an answer.", "No.", rng), "response2": None}
    yield {**validation_row, "response1": "Let us begin at once.", "response2": "I would rather not say."}


def _row(
    prompt: str, better: str, worse: str, rng: random.Random, *, domain: str = "general", language: str = "english"
) -> Row:
    """A row of HelpSteer3's schema, where a negative preference means that response 1 is better."""
    better_first, strength = rng.random() < 0.5, rng.choice((1, 2, 3))
    preference = -strength if better_first else strength
    return {
        "domain": domain,
        "language": language,
        "context": [{"role": "user", "content": prompt}],
        "response1": better if better_first else worse,
        "response2": worse if better_first else better,
        "overall_preference": preference,
        "individual_preference": _annotators(preference),
    }


def _annotators(score: int) -> list[Row]:
    return [{"score": score, "reasoning": "As asked.", "feedback1": "", "feedback2": ""} for _ in range(3)]


def _packed(rows: list[Row]) -> bytes:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return gzip.compress(text.encode(), mtime=0)
