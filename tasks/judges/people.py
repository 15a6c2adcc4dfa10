"""What people chose of blind pairs: kept choice by choice, a file for each person, below the store of the runs."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow.parquet as pq
from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.configs.parts.judges import PeopleJudge
from containers.contracts.digests import file_sha256, write_atomically
from containers.contracts.names import JUDGE_INPUT, SAMPLED_FILE, VERDICTS_FILE
from containers.contracts.records import Message
from containers.contracts.spec import StageInput
from tasks.config.gates import PersonAwaitedError
from tasks.sources.errors import SourceNotFoundError

PEOPLE_FOLDER = "people"
_QUESTION_FILE = "question.json"
_CHOICES_OF = "by-"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PairChoice = Literal["first", "second", "tie"]


class PeopleWaitedForError(PersonAwaitedError):
    """People have yet to judge pairs; the run goes on when it is started again after that.

    Args:
        waiting: the questions.
        refused: why some of what people said in Prefect was not taken.
    """

    def __init__(self, text: str, waiting: Sequence["PeopleChoices"], *, refused: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.waiting = tuple(waiting)
        self.refused = tuple(refused)


class Pairs(Protocol):
    """Pairs of completions that lie in a folder, in sampled.parquet: an artifact, or what a training left."""

    @property
    def path(self) -> str:
        """The folder."""
        ...

    @property
    def digest(self) -> str:
        """Of the texts."""
        ...


class PairQuestion(Frozen):
    """`question.json`: which pairs are to be judged, of which run.

    A person sees neither names nor order of policy and reference.
    """

    judge: str
    run_name: str
    output_dir: str
    completions: str = Field(description="The folder that has the pairs")
    num_people: int
    places: tuple[int, ...] = Field(description="Pairs to judge, of all pairs of that artifact")
    command: str = Field("", description="How the run goes on")


class Choice(Frozen):
    """One person's choice of one pair, with its provenance."""

    place: int
    policy_first: bool
    choice: PairChoice
    by: str = Field(pattern=NAME)
    at: str = Field(description="UTC, ISO 8601")


class ShownPair(Frozen):
    """A pair as one person sees it."""

    place: int
    policy_first: bool
    prompt: tuple[Message, ...]
    first: str
    second: str


class PeopleChoices:
    """The choices of people about one set of completions.

    Args:
        folder: of this judge and these completions.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.question = PairQuestion.model_validate_json((folder / _QUESTION_FILE).read_bytes())

    def of(self, person: str) -> dict[int, Choice]:
        """Return that person's choices by pair; a line that a break cut off is none."""
        return {choice.place: choice for choice in _read(self._file(person))}

    @property
    def people(self) -> tuple[str, ...]:
        """The names of those who have chosen something."""
        names = (path.stem.removeprefix(_CHOICES_OF) for path in sorted(self.folder.glob(f"{_CHOICES_OF}*.jsonl")))
        return tuple(name for name in names if self.of(name))

    def left(self, person: str) -> list[int]:
        """Return the pairs that this person has yet to judge, in an order of their own."""
        known = self.of(person)
        places = [place for place in self.question.places if place not in known]
        return sorted(places, key=lambda place: _drawn(self.folder.name, person, place, "order"))

    def next_places(self, number: int) -> list[int]:
        """Return the pairs that the fewest people have judged, at most so many; for one whose name is not known yet."""
        judged = Counter(place for person in self.people for place in self.of(person))
        return sorted(self.question.places, key=lambda place: (judged[place], place))[:number]

    def shown(self, person: str, place: int) -> ShownPair:
        """Return the pair as this person sees it; which answer comes first is drawn."""
        row = _rows(Path(self.question.completions) / SAMPLED_FILE)[place]
        policy_first = _drawn(self.folder.name, person, place, "side") < 0.5
        first, second = (row["policy"], row["reference"]) if policy_first else (row["reference"], row["policy"])
        prompt = tuple(Message.model_validate(turn) for turn in row["prompt"])
        return ShownPair(place=place, policy_first=policy_first, prompt=prompt, first=first, second=second)

    def keep(self, person: str, pair: ShownPair, choice: PairChoice) -> None:
        """Keep a choice at once."""
        made = Choice(
            place=pair.place,
            policy_first=pair.policy_first,
            choice=choice,
            by=person,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        file = self._file(person)
        whole = file.read_text(encoding="utf-8") if file.is_file() else ""
        with open(file, "a", encoding="utf-8") as stream:
            stream.write(("" if not whole or whole.endswith("\n") else "\n") + made.model_dump_json() + "\n")

    def delete(self, person: str) -> int:
        """Delete everything that this person chose, also from the file of all; return how many choices that were."""
        number = len(self.of(person))
        self._file(person).unlink(missing_ok=True)
        if (self.folder / VERDICTS_FILE).is_file():
            self.together()
        return number

    @property
    def is_enough(self) -> bool:
        """Whether enough people have judged every pair; there is none where policy and reference wrote the same."""
        return (
            not self.question.places or sum(not self.left(person) for person in self.people) >= self.question.num_people
        )

    def state_text(self) -> str:
        """Return who has judged how many pairs, and how many people are wanted."""
        total = len(self.question.places)
        each = ", ".join(f"{person} {len(self.of(person)):,} of {total:,}" for person in self.people)
        wanted = "1 person" if self.question.num_people == 1 else f"{self.question.num_people} people"
        return f"judge {self.question.judge}: {total:,} pairs, {wanted} wanted; so far: {each or 'no choice'}"

    def together(self) -> Path:
        """Write the choices of all people into one file, in one order; return it."""
        choices = sorted(
            (choice for person in self.people for choice in self.of(person).values()),
            key=lambda choice: (choice.place, choice.by),
        )
        file = self.folder / VERDICTS_FILE
        write_atomically(file, "".join(f"{choice.model_dump_json()}\n" for choice in choices))
        return file

    def without_names(self) -> str:
        """Return the choices of all people as lines, with numbers for names: this copy outlives a `--delete`."""
        rows = [json.loads(line) for line in self.together().read_text(encoding="utf-8").splitlines()]
        number = {name: str(place) for place, name in enumerate(self.people, start=1)}
        kept = ({**row, "by": number[row["by"]], "at": ""} for row in rows)
        return "".join(f"{json.dumps(row)}\n" for row in kept)

    def _file(self, person: str) -> Path:
        return self.folder / f"{_CHOICES_OF}{person}.jsonl"


def people_of_run(verdicts: Path, *, run_name: str, output_dir: Path) -> list[PeopleChoices]:
    """Return what people are to judge, or have judged, for that run; the newest question first."""
    found = (PeopleChoices(file.parent) for file in (verdicts / PEOPLE_FOLDER).glob(f"*/{_QUESTION_FILE}"))
    own = (item for item in found if (item.question.run_name, item.question.output_dir) == (run_name, str(output_dir)))
    return sorted(own, key=lambda item: (item.folder / _QUESTION_FILE).stat().st_mtime, reverse=True)


def how_to_judge(command: str) -> str:
    """Return what people do, in two sentences.

    Args:
        command: how the run goes on.
    """
    return f"Give `rlhf judge --by NAME` the same -c, --set and --profile as the run. Then go on with: {command}"


def ask_people(
    judge: PeopleJudge,
    completions: Pairs,
    verdicts: Path,
    *,
    run_name: str,
    output_dir: Path,
    seed: int,
    command: str,
) -> PeopleChoices:
    """Write which pairs people are to judge; what they have chosen already stays."""
    rows = _rows(Path(completions.path) / SAMPLED_FILE)
    different = [place for place, row in enumerate(rows) if row["policy"] != row["reference"]]
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    places = sorted(rng.sample(different, min(judge.num_pairs, len(different))))
    folder = _folder(judge, completions, verdicts, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    question = PairQuestion(
        judge=judge.name,
        run_name=run_name,
        output_dir=str(output_dir),
        completions=completions.path,
        num_people=judge.num_people,
        places=tuple(places),
        command=command,
    )
    write_atomically(folder / _QUESTION_FILE, question.model_dump_json(indent=2))
    return PeopleChoices(folder)


def peoples_input(judge: PeopleJudge, completions: Pairs, verdicts: Path, *, seed: int) -> StageInput:
    """The input of evaluate_policy with what people chose.

    Raises:
        SourceNotFoundError: not enough people have judged every pair.
    """
    folder = _folder(judge, completions, verdicts, seed=seed)
    try:
        choices = PeopleChoices(folder)
    except (OSError, ValueError) as error:
        raise SourceNotFoundError(f"judge {judge.name}: no pair was shown to people yet.", "Run the run.") from error
    if not choices.is_enough:
        raise SourceNotFoundError(f"{choices.state_text()}.", "Use `rlhf judge`.")
    digest = f"sha256:{file_sha256(choices.together())}"
    return StageInput(name=f"{JUDGE_INPUT}_{judge.name}", path=str(folder), digest=digest, origin="people")


def _folder(judge: PeopleJudge, completions: Pairs, verdicts: Path, *, seed: int) -> Path:
    text = json.dumps([completions.digest, judge.name, judge.num_pairs, seed])
    return verdicts / PEOPLE_FOLDER / hashlib.sha256(text.encode()).hexdigest()[:32]


def _rows(sampled: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(sampled, columns=["prompt", "policy", "reference"]).to_pylist()
    return rows


def _read(file: Path) -> Iterator[Choice]:
    lines: Sequence[str] = file.read_text(encoding="utf-8").splitlines() if file.is_file() else ()
    for line in lines:
        try:
            yield Choice.model_validate_json(line)
        except ValueError:
            continue


def _drawn(*parts: object) -> float:
    """Return a number from 0 to 1 that is always the same for these parts."""
    text = json.dumps([str(part) for part in parts])
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12
