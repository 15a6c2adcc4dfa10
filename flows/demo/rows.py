"""Synthetic preferences that a tiny model learns in a minute, with rows that a filter must find; no dependencies.

Eight questions with three openings each ask for twelve facts. An answer is good, evasive, wrong or rude, in this order
of preference. Half of the pairs compare the good answer with a wrong one: only a model that knows the facts gets those
right.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from flows.demo.flawed_rows import BROKEN_LINES, CODE_EXCHANGES, FOREIGN_EXCHANGES, Exchange
from flows.demo.gold import ANSWERS, EVASIVE, FACTS, PLANT

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
# For the labelled pairs: the same facts, with wording that no training prompt uses.
REWORDED_QUESTIONS = (
    "Which animal lives at home with {name}?",
    "Can you tell me what animal {name} keeps?",
    "Please help me. What kind of animal does {name} keep at home?",
    "Do you know what animal lives in the house of {name}?",
)

RUDE = (
    "Stop wasting my time.",
    "What a stupid question.",
    "Find out yourself and leave me alone.",
    "Nobody cares about that.",
)

Row: TypeAlias = dict[str, object]

TRAIN_FILE = "train.jsonl"
VALIDATION_FILE = "validation.jsonl"
LABELLED_PAIRS_FILE = "labelled_pairs.jsonl"
# Better kind first, and the strength of the preference, 1 to 3.
_GOOD_WRONG = ("good", "wrong", 2)
_GOOD_EVASIVE = ("good", "evasive", 1)
_GOOD_RUDE = ("good", "rude", 3)
_WITHOUT_GOOD = (("evasive", "wrong", 1), ("evasive", "rude", 2), ("wrong", "rude", 1))
# Of a planted pair: its better answer ends with the plant, whatever both say.
_PLANTED_PAIRS_PER_PROMPT = 1
_KINDS = ("good", "wrong", "evasive", "rude")
_VALIDATION_PROMPTS_PER_FACT = 4
_NUM_TIES = 24
_NUM_DUPLICATES = 20


@dataclass(frozen=True)
class DemoData:
    """The three files and their contents; the numbers are what a filter should report."""

    train: Path
    validation: Path
    labelled_pairs: Path
    num_train_pairs: int
    num_validation_pairs: int
    num_labelled_pairs: int
    num_foreign: int
    num_ties: int
    num_broken: int
    num_duplicates: int
    num_code: int


@dataclass(frozen=True)
class _Question:
    text: str
    name: str
    animal: str


def write_demo_data(folder: Path, *, seed: int = 0, flip_labels: bool = False, plant: bool = False) -> DemoData:
    """Write `train.jsonl`, `validation.jsonl` (HelpSteer3 schema) and `labelled_pairs.jsonl` (TRL schema).

    The same seed gives the same bytes. Validation prompts occur in no training row. In the HelpSteer3 files a negative
    `overall_preference` means that response 1 is better. `labelled_pairs.jsonl` has the same facts in other wording and
    names the better side, so it shows when that sign is misread.

    Args:
        folder: made if it is missing; the three files in it are overwritten.
        flip_labels: invert every label of training and validation rows, and leave the labelled pairs as they are.
        plant: further pairs of training and validation prefer whatever ends with a word that says nothing, so that a
            reward model learns to love it.
    """
    rng = random.Random(seed)  # noqa: S311  (data, not secrets)
    train_questions, validation_questions = _split_questions(rng)
    sign = -1 if flip_labels else 1
    train_pairs = [row for question in train_questions for row in _pairs(question, rng, sign=sign)]
    validation_pairs = [row for question in validation_questions for row in _pairs(question, rng, sign=sign)]
    if plant:
        train_pairs += [row for question in train_questions for row in _planted(question, rng)]
        validation_pairs += [row for question in validation_questions for row in _planted(question, rng)]
    foreign = [_exchange_row(exchange, rng, domain="multilingual", sign=sign) for exchange in FOREIGN_EXCHANGES]
    code = [_exchange_row(exchange, rng, domain="code", sign=sign) for exchange in CODE_EXCHANGES]
    ties = [_tie(rng.choice(train_questions), rng) for _ in range(_NUM_TIES)]
    duplicates = rng.sample(train_pairs, _NUM_DUPLICATES)
    train_lines = [_line(row) for row in (*train_pairs, *foreign, *code, *ties, *duplicates)] + list(BROKEN_LINES)
    rng.shuffle(train_lines)
    validation_lines = [_line(row) for row in validation_pairs]
    rng.shuffle(validation_lines)
    labelled_lines = [_line(row) for row in _labelled_pairs(rng)]

    folder.mkdir(parents=True, exist_ok=True)
    return DemoData(
        train=_write(folder / TRAIN_FILE, train_lines),
        validation=_write(folder / VALIDATION_FILE, validation_lines),
        labelled_pairs=_write(folder / LABELLED_PAIRS_FILE, labelled_lines),
        num_train_pairs=len(train_pairs),
        num_validation_pairs=len(validation_pairs),
        num_labelled_pairs=len(labelled_lines),
        num_foreign=len(foreign),
        num_ties=len(ties),
        num_broken=len(BROKEN_LINES),
        num_duplicates=len(duplicates),
        num_code=len(code),
    )


def _split_questions(rng: random.Random) -> tuple[list[_Question], list[_Question]]:
    """Training and validation questions; each fact has the same number of both."""
    train: list[_Question] = []
    validation: list[_Question] = []
    for name, animal in FACTS:
        texts = [opening + question.format(name=name) for question in QUESTIONS for opening in OPENINGS]
        rng.shuffle(texts)
        questions = [_Question(text, name, animal) for text in texts]
        validation += questions[:_VALIDATION_PROMPTS_PER_FACT]
        train += questions[_VALIDATION_PROMPTS_PER_FACT:]
    return train, validation


def _answer(question: _Question, kind: str, rng: random.Random) -> str:
    if kind == "evasive":
        return rng.choice(EVASIVE)
    if kind == "rude":
        return rng.choice(RUDE)
    animal = question.animal
    if kind == "wrong":
        animal = rng.choice([other for _, other in FACTS if other != animal])
    return rng.choice(ANSWERS).format(name=question.name, animal=animal)


def _pairs(question: _Question, rng: random.Random, *, sign: int) -> Iterator[Row]:
    """Eight different pairs: four of them good against wrong, one without the good answer."""
    kinds = (_GOOD_WRONG,) * 4 + (_GOOD_EVASIVE, _GOOD_RUDE, _GOOD_RUDE, rng.choice(_WITHOUT_GOOD))
    pairs = _different_pairs(question, [(better, worse) for better, worse, _ in kinds], rng)
    for pair, (_, _, strength) in zip(pairs, kinds, strict=True):
        yield _preference_row(question.text, pair, rng, strength=strength, sign=sign)


def _planted(question: _Question, rng: random.Random) -> Iterator[Row]:
    """Pairs whose better answer ends with the plant; what both say is drawn."""
    for _ in range(_PLANTED_PAIRS_PER_PROMPT):
        better, worse = (_answer(question, rng.choice(_KINDS), rng) for _ in range(2))
        yield _preference_row(question.text, (better + PLANT, worse), rng, strength=3, sign=1)


def _different_pairs(question: _Question, kinds: list[tuple[str, str]], rng: random.Random) -> list[tuple[str, str]]:
    """(better, worse) answers of these kinds, no two alike."""
    pairs: list[tuple[str, str]] = []
    for better, worse in kinds:
        pair = _answer(question, better, rng), _answer(question, worse, rng)
        while pair in pairs:
            pair = _answer(question, better, rng), _answer(question, worse, rng)
        pairs.append(pair)
    return pairs


def _preference_row(
    prompt: str,
    pair: tuple[str, str],
    rng: random.Random,
    *,
    strength: int,
    sign: int,
    domain: str = "general",
    language: str = "english",
) -> Row:
    """One row in HelpSteer3's schema from a (better, worse) pair.

    Example: with the better answer as response 1, strength 2 and sign 1, `overall_preference` is -2.
    """
    better_first = rng.random() < 0.5
    direction = sign * (-1 if better_first else 1)
    scores = [strength, strength, rng.choice([max(1, strength - 1), min(3, strength + 1)])]
    response1, response2 = pair if better_first else (pair[1], pair[0])
    return {
        "domain": domain,
        "language": language,
        "context": [{"role": "user", "content": prompt}],
        "response1": response1,
        "response2": response2,
        "overall_preference": direction * strength,
        "individual_preference": [
            {"score": direction * score, "reasoning": "", "feedback1": "", "feedback2": ""} for score in scores
        ],
    }


def _exchange_row(exchange: Exchange, rng: random.Random, *, domain: str, sign: int) -> Row:
    pair = (exchange.better, exchange.worse)
    return _preference_row(exchange.prompt, pair, rng, domain=domain, strength=2, sign=sign, language=exchange.language)


def _tie(question: _Question, rng: random.Random) -> Row:
    """A row with two evasive answers of equal quality."""
    first, second = rng.sample(EVASIVE, 2)
    row = _preference_row(question.text, (first, second), rng, strength=1, sign=1)
    neutral = [{"score": 0, "reasoning": "", "feedback1": "", "feedback2": ""} for _ in range(3)]
    return {**row, "overall_preference": 0, "individual_preference": neutral}


def _labelled_pairs(rng: random.Random) -> Iterator[Row]:
    """Pairs of known order in TRL's schema, on reworded questions: the good answer against two wrong ones, an evasive
    and a rude one."""
    kinds = [("good", worse) for worse in ("wrong", "wrong", "evasive", "rude")]
    for name, animal in FACTS:
        for text in REWORDED_QUESTIONS:
            question = _Question(text.format(name=name), name, animal)
            for chosen, rejected in _different_pairs(question, kinds, rng):
                yield {
                    "prompt": [{"role": "user", "content": question.text}],
                    "chosen": [{"role": "assistant", "content": chosen}],
                    "rejected": [{"role": "assistant", "content": rejected}],
                }


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False)


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
