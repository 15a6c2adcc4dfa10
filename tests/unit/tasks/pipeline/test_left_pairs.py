"""Pairs that a training left are judged outside it: by an address at once, by people when they come."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.configs.parts.evidence import EvidenceSettings
from containers.contracts.configs.parts.judges import EndpointJudge, Judge, PeopleJudge
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.evidence import AskedPairs
from containers.contracts.names import ASKED_FILE, ASKED_FOLDER, SAMPLED_FILE, VERDICTS_FILE
from containers.judges.people import People, _row
from tasks.judges.people import PeopleChoices, PeopleWaitedForError, people_of_run
from tasks.pipeline.left_pairs import judge_left_pairs, left_pairs
from tasks.run.state import PipelineRun
from tasks.sources.errors import UnusableSourceError
from tests.unit.tasks.judges.test_endpoint_judges import Served, prefers_good, served

pytestmark = pytest.mark.stages

__all__ = ["served"]

ROWS = [
    {"prompt": [{"role": "user", "content": "Which?"}], "policy": f"good {at}", "reference": f"bad {at}"}
    for at in range(8)
]


@pytest.fixture
def run(tmp_path: Path) -> PipelineRun:
    settings = SimpleNamespace(name="demo", seed=3)
    found = SimpleNamespace(
        store_dir=tmp_path / "store",
        output_dir=tmp_path / "out",
        command="rlhf run -c x.yaml",
        config=SimpleNamespace(run=settings, output_dir=tmp_path / "out"),
    )
    return cast("PipelineRun", found)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The work folder of a training that left eight pairs."""
    leave(tmp_path / "work", "a" * 32, judge="far")
    return tmp_path / "work"


def leave(work: Path, key: str, *, judge: str) -> Path:
    folder = work / ASKED_FOLDER / key
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(ROWS), folder / SAMPLED_FILE)
    (folder / ASKED_FILE).write_text(AskedPairs(judge=judge, num_pairs=len(ROWS)).model_dump_json())
    return folder


def config(judge: Judge) -> TrainPolicyConfig:
    return TrainPolicyConfig(evidence=EvidenceSettings(judges=(judge,)))


def judged(run: PipelineRun, work: Path, judge: Judge) -> list[dict[str, Any]]:
    judge_left_pairs(run, config(judge), work, say=lambda _: None)
    (file,) = work.glob(f"{ASKED_FOLDER}/*/{VERDICTS_FILE}")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_an_address_answers_at_once_and_is_not_asked_again(served: Served, run: PipelineRun, work: Path) -> None:
    served.answer = prefers_good
    far = EndpointJudge(name="far", url=served.url, model="judge-7b", timeout_s=5)
    lines = judged(run, work, far)
    assert len(lines) == len(served.seen) == 2 * len(ROWS)
    assert not list(left_pairs(work))
    next(iter(work.glob(f"{ASKED_FOLDER}/*/{VERDICTS_FILE}"))).unlink()  # a power cut before it was written
    assert judged(run, work, far) == lines and len(served.seen) == 2 * len(ROWS)


def test_an_address_that_is_down_says_so_and_what_it_wrote_is_kept(
    served: Served, run: PipelineRun, work: Path
) -> None:
    served.answer = lambda question: prefers_good(question) if len(served.seen) < 4 else (503, "")
    far = EndpointJudge(name="far", url=served.url, model="judge-7b", timeout_s=5, parallel=1)
    with pytest.raises(UnusableSourceError, match=r"judge far at .* cannot be asked"):
        judged(run, work, far)
    assert list(left_pairs(work))
    served.answer, known = prefers_good, 3
    before = len(served.seen)
    assert len(judged(run, work, far)) == 2 * len(ROWS)
    assert len(served.seen) - before == 2 * len(ROWS) - known


def test_people_see_every_pair_and_the_run_goes_on_once_there_are_enough(run: PipelineRun, work: Path) -> None:
    far = PeopleJudge(name="far", num_pairs=4096, num_people=2)
    with pytest.raises(PeopleWaitedForError, match=r"8 pairs, 2 people wanted; so far: no choice(.|\n)*holds no GPU"):
        judged(run, work, far)
    (choices,) = people_of_run(run.store_dir / "verdicts", run_name="demo", output_dir=run.output_dir.resolve())
    assert len(choices.question.places) == len(ROWS)
    judge_all(choices, "ada")
    with pytest.raises(PeopleWaitedForError, match="ada 8 of 8"):
        judged(run, work, far)
    judge_all(choices, "ben")
    rows = judged(run, work, far)
    verdicts = People([_row(row) for row in rows]).verdicts(cast("Any", [None] * len(ROWS)))
    assert [verdict.points for verdict in verdicts] == [1.0] * len(ROWS)


def judge_all(choices: PeopleChoices, name: str) -> None:
    for place in choices.left(name):
        pair = choices.shown(name, place)
        choices.keep(name, pair, "first" if "good" in pair.first else "second")


def test_no_name_of_a_person_gets_into_the_training(run: PipelineRun, work: Path) -> None:
    far = PeopleJudge(name="far")
    with pytest.raises(PeopleWaitedForError):
        judged(run, work, far)
    (choices,) = people_of_run(run.store_dir / "verdicts", run_name="demo", output_dir=run.output_dir.resolve())
    judge_all(choices, "ada.lovelace")
    judged(run, work, far)
    texts = [path.read_text(errors="replace") for path in work.rglob("*") if path.is_file()]
    assert len(texts) == 3 and not any("lovelace" in text for text in texts)
    assert choices.delete("ada.lovelace") == len(ROWS)
    assert not any("lovelace" in path.read_text() for path in choices.folder.rglob("*") if path.is_file())


def test_pairs_for_a_judge_that_the_run_does_not_have_are_told(run: PipelineRun, work: Path) -> None:
    with pytest.raises(UnusableSourceError, match=r"pairs for judge far, whom the run cannot reach\. Delete"):
        judged(run, work, PeopleJudge(name="near"))


def test_a_question_that_was_never_finished_is_none(work: Path) -> None:
    folder = leave(work, "b" * 32, judge="far")
    (folder / ASKED_FILE).unlink()
    assert [Path(found.path).name for found in left_pairs(work)] == ["a" * 32]
