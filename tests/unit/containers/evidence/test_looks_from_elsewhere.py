"""A judge that no stage reaches decides as one beside the policy would: the stage ends at a look, and goes on."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from containers.contracts.configs.parts.judges import EndpointJudge, Judge, PeopleJudge
from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.evidence import AskedPairs
from containers.contracts.names import ASKED_FILE, ASKED_FOLDER, SAMPLED_FILE, VERDICTS_FILE, StageName
from containers.harness.context import StageContext
from containers.harness.errors import JudgeAwaitedError, MissingPrerequisiteError
from containers.judges.base import Pair, start_judge
from containers.rewards.base import Answered
from containers.rollouts.generate import Completion
from containers.stages import train_policy
from tests.unit.containers.evidence.test_looks_in_training import (
    CONFIG,
    context_of,
    evidence_of,
    inputs,
    scripted,
    weights,
)
from tests.unit.factories.spec_factory import make_context

pytestmark = pytest.mark.stages
__all__ = ["inputs"]

ADDRESS = EndpointJudge(name="far", url="http://127.0.0.1:1/v1", model="m")
PEOPLE = PeopleJudge(name="far")
_LETTERS = {"+": ("A", "B"), "-": ("TIE", "TIE"), "!": ("B", "A")}
_CHOICES = {"+": "first", "-": "tie", "!": "second"}


def left(context: StageContext) -> list[Path]:
    """Folders of pairs that nothing has judged."""
    folders = (file.parent for file in (context.work / ASKED_FOLDER).glob(f"*/{ASKED_FILE}"))
    return [folder for folder in folders if not (folder / VERDICTS_FILE).is_file()]


def answer(folder: Path, sign: str, *, by_people: bool) -> None:
    """Say of each pair what the sign means."""
    rows = pq.read_table(folder / SAMPLED_FILE).to_pylist()
    lines: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        if row["policy"] == row["reference"]:
            continue
        if by_people:
            lines.append({"place": place, "policy_first": True, "choice": _CHOICES[sign], "by": "1", "at": ""})
            continue
        for policy_first, letter in zip((True, False), _LETTERS[sign], strict=True):
            lines.append({"place": place, "policy_first": policy_first, "answer": letter, "problem": ""})
    (folder / VERDICTS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def to_its_end(context: StageContext, script: str, *, by_people: bool) -> list[str]:
    """Run the stage again and again, with a look judged by each sign; return why each attempt ended."""
    signs: Iterator[str] = iter(script)
    ended, present = [], ""
    while True:
        try:
            train_policy.run(context)
        except JudgeAwaitedError as error:
            ended.append(str(error))
            (folder,) = left(context)
            # A look that shows nothing comes with a second half.
            is_second = present == "-" and bool(ended[:-1]) and ended[-2].split("step")[1] == ended[-1].split("step")[1]
            present = present if is_second else next(signs)
            answer(folder, present, by_people=by_people)
            shutil.rmtree(context.output)
            context.output.mkdir()
        else:
            assert next(signs, None) is None
            return ended


@pytest.mark.parametrize(("judge", "script"), [(ADDRESS, "+-+!"), (PEOPLE, "+--"), (ADDRESS, "++++"), (PEOPLE, "-!")])
def test_the_policy_is_that_of_a_judge_beside_it(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, judge: Judge, script: str
) -> None:
    far = context_of(tmp_path / "far", inputs, evidence={"judges": (judge,)})
    ended = to_its_end(far, script, by_people=judge is PEOPLE)
    assert len(ended) == len(script) + script.count("-")
    assert ended[0].startswith("8 pairs wait for judge far. They compare step 2 with the start model.")
    scripted(monkeypatch, script)
    near = context_of(tmp_path / "near", inputs)
    train_policy.run(near)
    found, wanted = evidence_of(far), evidence_of(near)
    assert [(look.step, look.against, look.consequence) for look in found.looks] == [
        (look.step, look.against, look.consequence) for look in wanted.looks
    ]
    assert [look.reward for look in found.looks if look.num_pairs == 16] == [
        look.reward for look in wanted.looks if look.num_pairs == 16
    ]
    assert (found.judge, found.published_step) == ("far", wanted.published_step)
    one, other = (weights(context.output / "model") for context in (far, near))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_roll_back_by_a_judge_from_elsewhere_is_that_of_one_beside_it(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"on_no_gain": "roll_back", "max_roll_backs": 1}
    changes: dict[str, Any] = {"beta": 0.1, "schedule": TrainingSchedule(max_steps=10, save_steps=10)}
    far = context_of(tmp_path / "far", inputs, evidence={**settings, "judges": (ADDRESS,)}, **changes)
    to_its_end(far, "+!+!", by_people=False)
    scripted(monkeypatch, "+!+!")
    near = context_of(tmp_path / "near", inputs, evidence=settings, **changes)
    train_policy.run(near)
    found, wanted = evidence_of(far), evidence_of(near)
    assert [look.consequence for look in found.looks] == [look.consequence for look in wanted.looks]
    assert [look.consequence for look in found.looks] == ["trusted", "rolls back", "trusted", "ends"]
    one, other = (weights(context.output / "model") for context in (far, near))
    assert all(torch.allclose(tensor, other[name], atol=1e-6) for name, tensor in one.items())


def test_a_stage_that_is_started_too_early_asks_the_same_and_trains_nothing(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    context = context_of(tmp_path, inputs, evidence={"judges": (PEOPLE,)})
    said = []
    for _ in range(2):
        with pytest.raises(JudgeAwaitedError) as error:
            train_policy.run(context)
        said.append((str(error.value), left(context), sorted(path.name for path in context.checkpoints.iterdir())))
    assert said[0] == said[1]
    (folder,) = said[0][1]
    assert AskedPairs.model_validate_json((folder / ASKED_FILE).read_bytes()) == AskedPairs(judge="far", num_pairs=8)
    assert "checkpoint-2" in said[0][2] and "checkpoint-4" not in said[0][2]


def test_damaged_verdicts_are_told(tmp_path: Path, inputs: dict[str, Path]) -> None:
    context = context_of(tmp_path, inputs, evidence={"judges": (PEOPLE,)})
    with pytest.raises(JudgeAwaitedError):
        train_policy.run(context)
    (folder,) = left(context)
    (folder / VERDICTS_FILE).write_text('{"place": 0, "choice": "third"}\n')
    with pytest.raises(MissingPrerequisiteError, match=r"What people chose for far, .*verdicts\.jsonl, cannot be read"):
        train_policy.run(context)


def test_equal_texts_are_ties_that_no_one_is_shown(tmp_path: Path) -> None:
    context = make_context(tmp_path, StageName.TRAIN_POLICY, CONFIG, {})
    turns = ({"role": "user", "content": "Which?"},)

    def pair(one: str, other: str) -> Pair:
        policy, reference = (Answered(turns, Completion((1,), (2,), text, True)) for text in (one, other))
        return Pair(policy, reference)

    judge = start_judge(context, CONFIG, PEOPLE)
    same = [pair("same", "same")] * 3
    assert [verdict.points for verdict in judge.verdicts(same)] == [0.5] * 3
    assert not (context.work / ASKED_FOLDER).exists()
    mixed = [*same, pair("one", "other")]
    with pytest.raises(JudgeAwaitedError, match="4 pairs wait for judge far"):
        judge.verdicts(mixed)
    (folder,) = left(context)
    answer(folder, "+", by_people=True)
    assert [verdict.points for verdict in judge.verdicts(mixed)] == [0.5, 0.5, 0.5, 1.0]
    assert judge.shown() == "1 person, who saw each pair blind"


def test_pairs_that_were_never_judged_are_gone_when_others_are_left(tmp_path: Path) -> None:
    context = make_context(tmp_path, StageName.TRAIN_POLICY, CONFIG, {})
    judge = start_judge(context, CONFIG, ADDRESS)
    turns = ({"role": "user", "content": "Which?"},)
    for text in ("one", "two"):
        policy, reference = (Answered(turns, Completion((1,), (2,), word, True)) for word in (text, "other"))
        with pytest.raises(JudgeAwaitedError):
            judge.verdicts([Pair(policy, reference)])
    (folder,) = left(context)
    assert pq.read_table(folder / SAMPLED_FILE).to_pylist()[0]["policy"] == "two"
