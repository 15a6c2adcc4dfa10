"""People judge blind, stop when they like, and may take back everything they said."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.contracts.configs.parts.judges import PeopleJudge
from containers.contracts.names import SAMPLED_FILE, StageName
from containers.contracts.spec import ArtifactRef
from containers.judges.people import People, _row
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt
from containers.rollouts.sampled import Sampled, write_sampled
from flows.cli.judge import judge_pairs
from tasks.judges.people import PeopleChoices, ask_people, people_of_run, peoples_input
from tasks.sources.errors import SourceNotFoundError

pytestmark = pytest.mark.stages

PAIRS = 40
JUDGE = PeopleJudge(num_pairs=16, num_people=2)


def completion(text: str) -> Completion:
    return Completion((1,), (2, 3), text, True)


@pytest.fixture
def completions(tmp_path: Path) -> ArtifactRef:
    """The policy's answers say so, which no person would be told; every tenth pair is the same text."""
    folder = tmp_path / "sampled"
    folder.mkdir()
    prompts = tuple(
        PolicyPrompt(f"p{number}", "general", ({"role": "user", "content": f"Question {number}?"},), (1,))
        for number in range(PAIRS)
    )
    policy = tuple(completion("same" if number % 10 == 0 else f"policy {number}") for number in range(PAIRS))
    reference = tuple(completion("same" if number % 10 == 0 else f"reference {number}") for number in range(PAIRS))
    write_sampled(Sampled(prompts, policy, reference, (0.0,) * PAIRS, ""), folder / SAMPLED_FILE)
    return ArtifactRef(stage=StageName.SAMPLE_COMPLETIONS, key="a" * 64, path=str(folder), digest="sha256:1")


def asked(completions: ArtifactRef, folder: Path) -> PeopleChoices:
    return ask_people(
        JUDGE, completions, folder, run_name="demo", output_dir=folder / "out", seed=3, command="rlhf run -c x.yaml"
    )


def keys(*lines: str) -> Iterator[str]:
    yield from lines


def person_who_prefers(choices: PeopleChoices, name: str, word: str) -> None:
    """Judge everything, by a word in the text."""
    for place in choices.left(name):
        pair = choices.shown(name, place)
        choices.keep(name, pair, "first" if word in pair.first else "second")


def test_pairs_are_drawn_once_without_equal_texts_and_shown_in_an_order_of_each_persons_own(
    completions: ArtifactRef, tmp_path: Path
) -> None:
    choices = asked(completions, tmp_path)
    assert len(choices.question.places) == 16
    assert not any(place % 10 == 0 for place in choices.question.places)
    assert asked(completions, tmp_path).question == choices.question
    assert choices.left("ada") != choices.left("ben") and sorted(choices.left("ada")) == sorted(choices.left("ben"))
    sides = [choices.shown("ada", place).policy_first for place in choices.question.places]
    assert 3 <= sum(sides) <= 13
    assert sides != [choices.shown("ben", place).policy_first for place in choices.question.places]


def test_a_choice_is_kept_at_once_and_a_person_goes_on_where_they_stopped(
    completions: ArtifactRef, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = asked(completions, tmp_path)
    lines = keys("a", "x", "t", "s", "q")
    assert judge_pairs(choices, "ada", ask=lambda text: next(lines)) == 0
    shown = capsys.readouterr().out
    assert "ada 2 of 16" in shown and "pair 1 of 16" in shown and "B is better" in shown
    file = next(choices.folder.glob("by-ada.jsonl"))
    file.write_text(file.read_text() + '{"place": 1, "poli')  # a power cut
    again = PeopleChoices(choices.folder)
    assert len(again.of("ada")) == 2 and len(again.left("ada")) == 14
    again.keep("ada", again.shown("ada", again.left("ada")[0]), "tie")
    assert len(again.of("ada")) == 3
    assert all(choice.by == "ada" and choice.at for choice in again.of("ada").values())


def test_the_run_goes_on_once_enough_people_judged_everything_and_the_policy_is_told_apart_again(
    completions: ArtifactRef, tmp_path: Path
) -> None:
    choices = asked(completions, tmp_path)
    person_who_prefers(choices, "ada", "policy")
    with pytest.raises(SourceNotFoundError, match=r"2 people wanted; so far: ada 16 of 16"):
        peoples_input(JUDGE, completions, tmp_path, seed=3)
    person_who_prefers(choices, "ben", "reference")
    before = peoples_input(JUDGE, completions, tmp_path, seed=3)
    rows = [_row(choice.model_dump()) for person in ("ada", "ben") for choice in choices.of(person).values()]
    people = People(rows).people()
    assert people.agreement == 0.0
    ada = [row for row in rows if row["by"] == "ada"]
    assert {verdict.points for verdict in People(ada).verdicts([None] * PAIRS) if verdict.was_asked} == {1.0}  # type: ignore[list-item]
    assert choices.delete("ben") == 16
    assert not any("ben" in file.read_text() for file in choices.folder.iterdir())
    assert not choices.is_enough and choices.people == ("ada",)
    person_who_prefers(choices, "ben", "policy")
    assert peoples_input(JUDGE, completions, tmp_path, seed=3).digest != before.digest


def test_a_run_finds_its_own_pairs_and_no_other_runs(completions: ArtifactRef, tmp_path: Path) -> None:
    asked(completions, tmp_path)
    assert len(people_of_run(tmp_path, run_name="demo", output_dir=tmp_path / "out")) == 1
    assert not people_of_run(tmp_path, run_name="other", output_dir=tmp_path / "out")


def test_without_a_question_nothing_was_judged(completions: ArtifactRef, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no pair was shown"):
        peoples_input(JUDGE, completions, tmp_path, seed=3)


def test_where_both_wrote_the_same_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    """The start model is published unchanged where no step was better."""
    same = tuple(completion("same") for _ in range(4))
    prompts = tuple(PolicyPrompt(str(number), "", ({"role": "user", "content": "?"},), (1,)) for number in range(4))
    folder = tmp_path / "sampled"
    folder.mkdir()
    write_sampled(Sampled(prompts, same, same, (0.0,) * 4, ""), folder / SAMPLED_FILE)
    made = ArtifactRef(stage=StageName.SAMPLE_COMPLETIONS, key="a" * 64, path=str(folder), digest="sha256:2")
    assert asked(made, tmp_path).is_enough
    assert (Path(peoples_input(JUDGE, made, tmp_path, seed=3).path) / "verdicts.jsonl").read_text() == ""
