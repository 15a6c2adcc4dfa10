"""score_file: score any file with any reward model in a container; needs neither Prefect nor MLflow."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.configs.score_file import ScoreFileConfig, ScoreFileSpec
from containers.contracts.digests import verify_artifact
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import SINGLE_BATCH, stage_profile
from containers.contracts.names import EVENTS_FILE, OUTPUT_FOLDER, SCORES_FILE, StageName
from containers.contracts.outcome import Metric, StageResult
from containers.contracts.spec import StageInput
from containers.launch.base import LaunchError as LaunchError
from containers.launch.base import LaunchRequest
from containers.launch.collect import read_outcome
from containers.launch.failures.classify import classify
from tasks.pipeline.failure import STAGE_LOG_FILE
from tasks.pipeline.failure import StageFailedError as StageFailedError
from tasks.pipeline.gpu_turn import gpu_turn
from tasks.run.runtime import CodeIdentity, required_contract, start_runtime
from tasks.sources.errors import SourceAccessError, UnusableSourceError
from tasks.sources.local import data_file_or_folder, data_files, resolve_file
from tasks.sources.peek import BEGINNING_BYTES, match_signature
from tasks.store.events import EventFeed

# First bytes of files that the stage reads: parquet and gzip.
_READ_BY_BEGINNING = (b"PAR1", b"\x1f\x8b")
_TABLES_OF_TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def rows_input(path: Path | str) -> StageInput:
    """A file of rows, or a folder of such files, as input `rows`.

    Raises:
        SourceError: it is not there, may not be read, is empty, or is no jsonl, jsonl.gz or parquet file.
    """
    for file in data_files(data_file_or_folder(path, key="FILE")):
        _demand_rows_file(file)
    found = resolve_file(path, name="rows", key="FILE")
    return StageInput(name="rows", path=str(found.path), digest=found.digest, origin=found.origin)


def _demand_rows_file(file: Path) -> None:
    advice = "Write the rows as .jsonl, .jsonl.gz or .parquet."
    if file.name.lower().endswith(_TABLES_OF_TEXT):
        raise UnusableSourceError(f"FILE: {file} is a table of text, which has no lists and no turns.", advice)
    try:
        with open(file, "rb") as stream:
            beginning = stream.read(BEGINNING_BYTES)
    except OSError as error:
        raise SourceAccessError(f"FILE: {file} cannot be read: {error}.", "Change its mode or owner.") from error
    foreign = None if beginning.startswith(_READ_BY_BEGINNING) else match_signature(beginning)
    if foreign is not None:
        raise UnusableSourceError(f"FILE: {file} is {foreign.kind}.", foreign.advice)


_SEED = 0  # nothing is drawn


@dataclass(frozen=True)
class ScoringPlace:
    """How the program is started, and where it may write.

    Attributes:
        folder: work, spec and log of this one scoring; the caller removes it.
        image: of the Docker runtime; None for processes.
    """

    folder: Path
    profile: GpuProfile
    code: CodeIdentity
    image: str | None = None
    silence_limit_s: float | None = None

    @property
    def work(self) -> Path:
        """The one folder that the program may write."""
        return self.folder / "work"

    @property
    def log(self) -> Path:
        """The program's log."""
        return self.folder / "attempt" / STAGE_LOG_FILE


def score_file(
    config: ScoreFileConfig,
    *,
    model: StageInput,
    rows: StageInput,
    place: ScoringPlace,
    say: Callable[[str], None],
    on_progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> tuple[Path, tuple[Metric, ...]]:
    """Score the rows; return the file, inside `place.folder`, with a line of JSON for each row, and the figures of all.

    Args:
        model: the input `reward_model`.
        rows: the input `rows`.
        say: gets lines for the user.

    Raises:
        StageFailedError: the program failed; says why and where its log is.
        LaunchError: it was not started.
        DamagedArtifactError: its output differs from its manifest.
    """
    spec = _spec(config, (model, rows), place)
    feed = EventFeed(
        place.work / EVENTS_FILE,
        on_metrics=lambda points: None,
        on_progress=on_progress,
        on_note=lambda note: say(note),
    )
    runtime = start_runtime(place.code.runtime, say=say)
    for folder in (place.work, place.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with gpu_turn(spec.profile, holder="rlhf score", say=say, should_stop=lambda: False):
        ended = runtime.run(
            LaunchRequest(
                spec=spec,
                spec_folder=place.log.parent,
                work_folder=place.work,
                image=place.image,
                on_tick=feed.poll,
            )
        )
    feed.poll()
    outcome = read_outcome(place.work)
    if (failure := classify(spec, ended, outcome)) is not None:
        raise StageFailedError(failure, log=place.log)
    output = place.work / OUTPUT_FOLDER
    verify_artifact(output)
    return output / SCORES_FILE, outcome.metrics if isinstance(outcome, StageResult) else ()


def _spec(config: ScoreFileConfig, inputs: tuple[StageInput, ...], place: ScoringPlace) -> ScoreFileSpec:
    # As the evaluation of a reward model.
    profile = stage_profile(place.profile, StageName.EVALUATE_REWARD_MODEL)
    return ScoreFileSpec(
        key=_key(config, inputs, place),
        config=config,
        inputs=inputs,
        seed=_SEED,
        profile=profile,
        batch=SINGLE_BATCH,
        required=required_contract(
            profile, seed=_SEED, stages_digest=place.code.stages_digest, runtime=place.code.runtime
        ),
        runtime=place.code.runtime,
        image_digest=place.code.image_digest,
        silence_limit_s=place.silence_limit_s,
        work_path=str(place.work.absolute()),
    )


def _key(config: ScoreFileConfig, inputs: tuple[StageInput, ...], place: ScoringPlace) -> str:
    """Equal for the same work in the same folder; two scorings at once have two keys, so two containers."""
    parts = [
        config.model_dump_json(),
        [(item.name, item.digest) for item in inputs],
        place.code.stages_digest,
        place.code.image_digest,
    ]
    return hashlib.sha256(json.dumps([*parts, str(place.folder.absolute())]).encode()).hexdigest()
