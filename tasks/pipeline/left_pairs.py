"""Pairs that wait for judges that no stage reaches: those that train_policy left, and those of the finished policy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.configs.parts.judges import EndpointJudge, PeopleJudge
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.digests import write_atomically
from containers.contracts.evidence import AskedPairs
from containers.contracts.names import ASKED_FILE, ASKED_FOLDER, VERDICTS_FILE
from containers.contracts.spec import ArtifactRef
from tasks.config.run import RunConfig
from tasks.judges.people import Pairs, PeopleChoices, PeopleWaitedForError, ask_people, how_to_judge
from tasks.judges.verdicts import VERDICTS_FOLDER, collected
from tasks.pipeline.pairs_form import take_choices
from tasks.run.state import PipelineRun
from tasks.sources.errors import UnusableSourceError


@dataclass(frozen=True)
class LeftPairs:
    """Pairs that wait for a judge.

    Attributes:
        path: their folder, with sampled.parquet.
        digest: of their texts and the judge's name.
    """

    path: str
    digest: str
    asked: AskedPairs


def left_pairs(work_folder: Path) -> Iterator[LeftPairs]:
    """Yield the pairs that were left and are not judged."""
    for file in sorted((work_folder / ASKED_FOLDER).glob(f"*/{ASKED_FILE}")):
        folder = file.parent
        if not (folder / VERDICTS_FILE).is_file():
            asked = AskedPairs.model_validate_json(file.read_bytes())
            yield LeftPairs(str(folder), f"sha256:{folder.name}", asked)


def judge_left_pairs(run: PipelineRun, config: StageConfig, work_folder: Path, *, say: Callable[[str], None]) -> None:
    """Have the pairs judged that the stage left: an address answers now, of people there must be enough.

    Raises:
        PeopleWaitedForError: people have yet to judge.
        UnusableSourceError: the judge behind an address is down; what it wrote is kept.
    """
    evidence = config.evidence if isinstance(config, TrainPolicyConfig) else None
    judges = {judge.name: judge for judge in (() if evidence is None else evidence.judges)}
    verdicts = run.store_dir.absolute() / VERDICTS_FOLDER
    for left in left_pairs(work_folder):
        judge = judges.get(left.asked.judge)
        target = Path(left.path) / VERDICTS_FILE
        if isinstance(judge, EndpointJudge):
            found = Path(collected(judge, left, verdicts, say=say).path) / VERDICTS_FILE
            write_atomically(target, found.read_text(encoding="utf-8"))
        elif isinstance(judge, PeopleJudge):
            _judged_by_people(run, judge, left, verdicts, target=target)
        else:
            raise UnusableSourceError(
                f"{left.path} has pairs for judge {left.asked.judge}, whom the run cannot reach.", "Delete that folder."
            )


def _judged_by_people(run: PipelineRun, judge: PeopleJudge, left: LeftPairs, verdicts: Path, *, target: Path) -> None:
    every_pair = judge.model_copy(update={"num_pairs": left.asked.num_pairs})
    choices, refused = _asked(every_pair, left, run.config, verdicts, command=run.command)
    if not choices.is_enough:
        raise PeopleWaitedForError(
            f"People judge the policy while it trains, and have yet to:\n  {choices.state_text()}\nThe training is "
            f"saved, and holds no GPU. {how_to_judge(run.command)}",
            [choices],
            refused=refused,
        )
    write_atomically(target, choices.without_names())


def demand_people(run: RunConfig, completions: ArtifactRef, *, command: str) -> None:
    """Ask people to judge, and go on only if enough of them have judged every pair.

    Args:
        command: how the run goes on.

    Raises:
        PeopleWaitedForError: some have yet to.
    """
    folder = run.store_dir.absolute() / VERDICTS_FOLDER
    waiting: list[PeopleChoices] = []
    refused: list[str] = []
    for judge in run.people_judges:
        choices, problems = _asked(judge, completions, run, folder, command=command)
        refused += problems
        if not choices.is_enough:
            waiting.append(choices)
    if waiting:
        lines = "\n".join(f"  {choices.state_text()}" for choices in waiting)
        raise PeopleWaitedForError(
            f"People judge the policy, and have yet to:\n{lines}\n{how_to_judge(command)}", waiting, refused=refused
        )


def _asked(
    judge: PeopleJudge, pairs: Pairs, run: RunConfig, verdicts: Path, *, command: str
) -> tuple[PeopleChoices, list[str]]:
    """Ask people about the pairs; return what they have chosen, and why something in Prefect was not taken."""
    choices = ask_people(
        judge,
        pairs,
        verdicts,
        run_name=run.run.name,
        output_dir=run.output_dir.resolve(),
        seed=run.run.seed,
        command=command,
    )
    return choices, take_choices(choices)
