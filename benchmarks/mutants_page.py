"""The page of `benchmarks.mutants`: how many mutants were killed, and what a person found about each that survived."""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.provenance import PROJECT, when_and_where
from containers.evals.intervals import exact_interval

JUDGED = PROJECT / "benchmarks" / "mutants_judged.toml"
WANTED = 0.85
VERDICTS = ("equivalent", "cosmetic", "hole")
_NOT_JUDGED = "not judged yet"
# File, line before, line after, both without spaces.
Place: TypeAlias = tuple[str, str, str]


def place(file: str, before: str, after: str) -> Place:
    """What finds a judgement: file and lines without spaces, of which cosmic-ray adds some."""
    return file, "".join(before.split()), "".join(after.split())


@dataclass(frozen=True)
class Mutant:
    """One changed place, and what the tests said: killed, survived, or stillborn.

    Attributes:
        before: the line, without the spaces around it.
        after: the changed line.
    """

    area: str
    file: str
    line: int
    function: str
    operator: str
    outcome: str
    before: str
    after: str

    @property
    def known_by(self) -> Place:
        """What finds its judgement."""
        return place(self.file, self.before, self.after)


@dataclass(frozen=True)
class Judgement:
    """What a person found about a survivor: `equivalent`, `cosmetic`, or `hole` for one that a test should kill."""

    verdict: str
    why: str


def judgements(path: Path = JUDGED) -> dict[Place, Judgement]:
    """File, line before and line after of a mutant → what a person found about it."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["judged"]
    return {
        place(item["file"], item["before"], item["after"]): Judgement(item["verdict"], item["why"]) for item in entries
    }


def report(
    mutants: Sequence[Mutant],
    measured: str,
    *,
    command: str,
    areas: Sequence[str],
    known: Mapping[Place, Judgement],
) -> str:
    """The page."""
    lived = [mutant for mutant in mutants if mutant.outcome == "survived"]
    counted = [mutant for mutant in mutants if mutant.outcome != "stillborn"]
    killed = len(counted) - len(lived)
    low, high = exact_interval(killed, len(counted), confidence=0.95)
    lines = [
        "# Mutants\n",
        f"    {command}\n",
        f"{when_and_where(measured)}.\n",
        "Single places of core files were changed by cosmic-ray, drawn by a fixed seed; a mutation is killed if the",
        f"tests beside its file notice. Killed: **{killed} of {len(counted)}, {killed / len(counted):.0%}** (95 % "
        f"interval {low:.0%} to {high:.0%}).{_without_equivalent(killed, lived, known)}\n",
        "Not drawn: `==` for `is` (for None the linter refuses it; members of an enumeration are one object each), and",
        "`/` for the `*` in a signature, which only says how a function may be called.\n",
        "| area | drawn | killed | survived |\n| --- | ---: | ---: | ---: |",
    ]
    for area in areas:
        of_area = [mutant for mutant in counted if mutant.area == area]
        survived = sum(mutant.outcome == "survived" for mutant in of_area)
        lines.append(f"| {area} | {len(of_area)} | {len(of_area) - survived} | {survived} |")
    lines.append(f"\n## Survived\n\n{_tally(lived, known)}\n")
    if lived:
        lines.append("| place | mutation | judgement |\n| --- | --- | --- |")
    for mutant in sorted(lived, key=lambda item: (item.file, item.line)):
        found = known.get(mutant.known_by)
        judged = f"{found.verdict}: {found.why}" if found else "**not judged yet**"
        lines.append(f"| `{mutant.file}:{mutant.line}` | {_code(mutant.before)} → {_code(mutant.after)} | {judged} |")
    return "\n".join(lines) + "\n"


def _without_equivalent(killed: int, lived: Sequence[Mutant], known: Mapping[Place, Judgement]) -> str:
    """The mutation score: the share of those that some input tells apart (Jia and Harman 2011, IEEE TSE 37(5))."""
    left = [
        mutant for mutant in lived if mutant.known_by not in known or known[mutant.known_by].verdict != "equivalent"
    ]
    if len(left) == len(lived):
        return ""
    return f" Of the {killed + len(left)} that some input tells apart: {killed / (killed + len(left)):.0%}."


def _tally(lived: Sequence[Mutant], known: Mapping[Place, Judgement]) -> str:
    counts = Counter(known[mutant.known_by].verdict if mutant.known_by in known else _NOT_JUDGED for mutant in lived)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (*VERDICTS, _NOT_JUDGED) if counts[verdict])
    return f"{told[:1].upper()}{told[1:] or 'None'}. Judged one by one: `benchmarks/mutants_judged.toml`."


def _code(line: str) -> str:
    return f"`{line.replace('|', chr(92) + '|')}`" if line else "nothing"


def is_good(mutants: Sequence[Mutant], known: Mapping[Place, Judgement]) -> bool:
    """Whether enough were killed, and each survivor is known to be equivalent or cosmetic."""
    counted = [mutant for mutant in mutants if mutant.outcome != "stillborn"]
    lived = [mutant for mutant in counted if mutant.outcome == "survived"]
    harmless = {found_by for found_by, found in known.items() if found.verdict != "hole"}
    return len(counted) - len(lived) >= WANTED * len(counted) and all(item.known_by in harmless for item in lived)
