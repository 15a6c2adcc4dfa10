"""Are quoted suite questions found, and wordings of one question kept together? Simulated texts, through the filter.

`python -m benchmarks.truth.quotation` prints a table. Each figure is a share over draws: of prompts that quote a
question and are found, of prompts with a suite's template and another question that are found all the same (false
alarms), and of questions whose wordings are on both sides of a split.
"""

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from containers.data.filters.contamination import SuiteIndex, SuitePrompt
from containers.data.filters.prompt_words import Prompts, Turns
from containers.data.filters.similar_prompts import prompts_for_split
from containers.data.filters.templates import TEMPLATE_WAYS
from containers.data.splits import share_of

_VOCABULARY = 5000
_OVERLAP = 0.5
_QUOTING = (*range(1, 21), 200)


@dataclass(frozen=True)
class Row:
    """One setting with its share over all draws.

    Attributes:
        wanted: what the share should be; None where the texts cannot tell.
        allowed: how far it may be from that.
    """

    setting: str
    num_prompts: int
    share: float
    wanted: float | None
    allowed: float = 0.01

    @property
    def is_wrong(self) -> bool:
        """Whether the share is too far from what it should be."""
        return self.wanted is not None and abs(self.share - self.wanted) > self.allowed


class Words:
    """Texts of words by Zipf's law, as in natural text: word r is drawn with a probability proportional to 1 / r.

    Attributes:
        num_others: prompts of the data that have nothing to do with a question.
    """

    def __init__(self, seed: int, *, num_others: int = 500) -> None:
        self.generator = np.random.default_rng(seed)
        self.num_others = num_others

    def text(self, fewest: int, most: int | None = None) -> str:
        """A text of so many words, or of a number between both."""
        number = int(self.generator.integers(fewest, (most or fewest) + 1))
        ranks = np.searchsorted(_zipf(), self.generator.random(number))
        return " ".join(f"w{rank}" for rank in ranks.tolist())

    def texts(self, number: int) -> list[str]:
        """Texts of 5 to 60 words that have nothing to do with one another."""
        return [self.text(5, 60) for _ in range(number)]


@functools.cache
def _zipf() -> NDArray[np.float64]:
    sums = np.cumsum(1 / np.arange(1, _VOCABULARY + 1))
    shares: NDArray[np.float64] = sums / sums[-1]
    return shares


def whole(words: Words, question: str, number: int) -> list[str]:
    """The question as it is, with other words before and after it."""
    return [f"{words.text(1, 6)} {question} {words.text(1, 6)}" for _ in range(number)]


def misspelt(words: Words, question: str, number: int) -> list[str]:
    """The question with one word changed, in each prompt another one."""
    changed = []
    for text in whole(words, question, number):
        parts = text.split()
        parts[int(words.generator.integers(len(parts)))] = words.text(1)
        changed.append(" ".join(parts))
    return changed


def renamed(words: Words, question: str, number: int) -> list[str]:
    """The question with one word changed, in all prompts in the same way."""
    parts = question.split()
    parts[len(parts) // 3] = words.text(1)
    return whole(words, " ".join(parts), number)


def continued(words: Words, question: str, number: int) -> list[str]:
    """The first four fifths of the question, with another end in each prompt."""
    parts = question.split()
    return whole(words, " ".join(parts[: len(parts) * 4 // 5]), number)


def found(suite: Sequence[str], data: Sequence[str]) -> set[str]:
    """The prompts of the data in which the filter finds a prompt of the suite."""
    items = [SuitePrompt("suite", str(place), place + 1, _turns(text)) for place, text in enumerate(suite)]
    return set(SuiteIndex(items).find(_prompts(data), overlap=_OVERLAP))


def quotations(words: Words, draws: int) -> Iterator[Row]:
    """Shares of prompts found that quote a question of a suite."""
    kinds: tuple[tuple[str, Callable[[Words, str, int], list[str]], tuple[int, int], Sequence[int]], ...] = (
        ("question of 9 to 60 words, whole", whole, (9, 60), _QUOTING),
        ("question of 5 to 7 words, whole", whole, (5, 7), (1, 5, 20, 200)),
        ("one word changed, another in each prompt", misspelt, (25, 60), (1, 5, 20, 200)),
        ("one word changed, in all alike", renamed, (25, 60), (1, 5, 20, 200)),
        ("four fifths of it, then another end in each", continued, (25, 60), (1, 2, 3, 5, 20)),
    )
    for setting, quote, lengths, numbers in kinds:
        for number in numbers:
            shares = []
            for _ in range(draws):
                question = words.text(*lengths)
                quoting = quote(words, question, number)
                is_found = found([question, *words.texts(50)], [*quoting, *words.texts(words.num_others)])
                shares.append(len(is_found & set(quoting)) / len(set(quoting)))
            wanted = None if quote is continued and number > 2 else 1.0
            yield Row(setting, number, float(np.mean(shares)), wanted)


def templates(words: Words, draws: int) -> Iterator[Row]:
    """Shares of prompts found that have a template of a suite's prompts, and another question."""
    for length, own in ((10, 8), (20, 15), (40, 10)):
        for in_data, in_suite in ((1, 1), (2, 1), (3, 1), (4, 1), (1, 3), (2, 2), (4, 4), (5, 1), (20, 1), (200, 10)):
            shares = []
            for _ in range(draws):
                template = words.text(length)
                suite = [f"{template} {words.text(own)}" for _ in range(in_suite)]
                data = [f"{template} {words.text(own)}" for _ in range(in_data)]
                is_found = found([*suite, *words.texts(50)], [*data, *words.texts(words.num_others)])
                shares.append(len(is_found & set(data)) / in_data)
            setting = f"template of {length} words with {own} others, {in_suite} of it in the suite"
            # Of just enough texts, two may go on with the same common word: then they are too few.
            allowed = 0.12 if in_data + in_suite == TEMPLATE_WAYS else 0.01
            wanted = 0.0 if in_data + in_suite >= TEMPLATE_WAYS else None
            yield Row(setting, in_data, float(np.mean(shares)), wanted, allowed)


def unrelated(words: Words, draws: int) -> Iterator[Row]:
    """Share of prompts found that have nothing to do with the suite."""
    shares = [len(found(words.texts(200), words.texts(2000))) / 2000 for _ in range(draws)]
    yield Row("nothing in common", 2000, float(np.mean(shares)), 0.0)


def splits(words: Words, draws: int) -> Iterator[Row]:
    """Shares of questions whose wordings are on both sides of a split, and the largest share that a template joins."""
    for number in (2, 3, 4, 5, 6, 7, 8, 20, 50):
        torn = 0
        for draw in range(draws):
            wordings = whole(words, words.text(25, 60), number)
            data = [*wordings, *words.texts(words.num_others)]
            groups = prompts_for_split(_prompts(data), overlap=0.9)
            names = {groups.of(text) for text in data}
            held_out = share_of(names, fraction=0.5, seed=draw, purpose="validation")
            torn += len({groups.of(text) in held_out for text in wordings}) > 1
        yield Row("wordings of one question, on both sides", number, torn / draws, 0.0)
    for length, own in ((40, 10), (40, 3)):
        template = words.text(length)
        data = [f"{template} {words.text(own)}" for _ in range(2000)]
        groups = prompts_for_split(_prompts(data), overlap=0.9)
        largest = max(map(len, groups.members().values()), default=1)
        yield Row(f"instruction of {length} words with {own} others, largest group", 2000, largest / 2000, 0.0, 0.05)


def rows(*, seed: int, draws: int) -> Iterator[Row]:
    """All rows of the table; the same seed gives the same."""
    for kind in (quotations, templates, unrelated, splits):
        yield from kind(Words(seed), draws)


def table(measured: Iterable[Row]) -> Iterator[str]:
    """The rows in Markdown."""
    yield "| texts | in prompts | share | wanted |"
    yield "|---|---:|---:|---:|"
    for row in measured:
        wanted = "cannot tell" if row.wanted is None else f"{row.wanted:.0%}"
        yield f"| {row.setting} | {row.num_prompts:,} | {row.share:.1%} | {wanted} |"


def _prompts(texts: Iterable[str]) -> Prompts:
    return Prompts({text: _turns(text) for text in texts})


def _turns(text: str) -> Turns:
    return ({"role": "user", "content": text},)


def main() -> int:
    """Print the table; 1 if a share is not what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=50, help="draws of each setting (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    measured = list(rows(seed=options.seed, draws=options.draws))
    print("\n".join(table(measured)))
    return int(any(row.is_wrong for row in measured))


if __name__ == "__main__":
    raise SystemExit(main())
