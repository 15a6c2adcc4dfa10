"""Read and write `champions/<name>.json` in the store: which model is champion, and why. MLflow only shows this file.

Every change is made under a kernel lock and replaces the file atomically. The champion and the one before it are
recorded among the runs of the store, so that `rlhf cache gc` does not delete their artifacts.

ChampionError
├── NoChampionError      there is no champion, no such version, or none to go back to
├── ChampionGoneError    an artifact or file that the champion needs is gone or damaged
└── ChampionMovedError   another process moved the champion meanwhile
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from containers.contracts.digests import (
    DamagedArtifactError,
    artifact_digest,
    file_sha256,
    verify_artifact,
    write_atomically,
)
from containers.contracts.spec import ArtifactRef
from tasks.champions.record import ChampionRecord, Decision, FrozenSet, Kind, ModelVersion, StoredArtifact
from tasks.store.history import StageHistory, StageMemory
from tasks.store.lock import LockError, taken

_FOLDER = "champions"
_LOCK_LIMIT_S = 60.0


class ChampionError(Exception):
    """Base: what, why, and what to do."""


class NoChampionError(ChampionError):
    """There is no champion, no such version, or none to go back to."""


class ChampionGoneError(ChampionError):
    """An artifact or file that the champion needs is gone or damaged."""


class ChampionMovedError(ChampionError):
    """Another process moved the champion meanwhile."""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        if not taken(lock, within_s=_LOCK_LIMIT_S):
            raise ChampionError(f"{path} has been held by another process for {_LOCK_LIMIT_S:g} s. Try again later.")
        yield
    except LockError as error:
        raise ChampionError(str(error)) from error
    finally:
        lock.release()


class ChampionBook:
    """The champions of one model of a run: `<run name>-reward-model` or `<run name>-policy`."""

    def __init__(self, store_dir: Path, *, run_name: str, kind: Kind) -> None:
        self.store_dir = store_dir.resolve()
        self.kind = kind
        self.name = champion_name(run_name, kind)
        self.folder = self.store_dir / _FOLDER / self.name
        self.path = self.folder.with_name(f"{self.name}.json")

    def read(self) -> ChampionRecord:
        """Return the record in the file; an empty one if there is no file yet.

        Raises:
            ChampionGoneError: the file cannot be read.
        """
        try:
            return ChampionRecord.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return ChampionRecord(name=self.name, kind=self.kind)
        except (OSError, ValidationError) as error:
            raise ChampionGoneError(
                f"{self.path} cannot be read, and it says who is champion: {error}. Restore it from a backup; or move "
                f"it away: then the next certified model starts a new line of champions."
            ) from error

    def update(self, change: Callable[[ChampionRecord], ChampionRecord]) -> ChampionRecord:
        """Replace the record by `change(record)`, under the lock. Return the new record."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.path.with_suffix(".lock")):
            record = change(self.read())
            write_atomically(self.path, record.model_dump_json(indent=1))
            self._keep_artifacts(record)
        return record

    def artifact(self, stored: StoredArtifact) -> ArtifactRef:
        """Return where the artifact is now, without checking it."""
        folder = self.store_dir / "artifacts" / stored.stage / stored.key
        return ArtifactRef(stage=stored.stage, key=stored.key, path=str(folder), digest=stored.digest)

    def require_whole(self, version: ModelVersion, *, whole_up_to_bytes: int | None = None) -> None:
        """Verify that every file of the version's model is there and unchanged.

        Raises:
            ChampionGoneError: a file is not; the message names it.
        """
        folder = Path(self.artifact(version.model).path)
        try:
            if not folder.is_dir():
                raise DamagedArtifactError(f"{folder} is not there.")
            manifest = verify_artifact(folder, whole_up_to_bytes=whole_up_to_bytes)
            if artifact_digest(manifest) != version.model.digest:
                raise DamagedArtifactError(f"{folder} holds another model than the one that was judged.")
        except DamagedArtifactError as error:
            raise ChampionGoneError(
                f"{self.name} {version.shown} cannot be used: {error} Restore the artifact {version.model.shown}, or "
                f"name another version; `rlhf champion` lists them."
            ) from error

    def freeze(self, source: Path, *, count: int, from_version: int, **was_used: bool) -> FrozenSet:
        """Copy `source` for later comparisons. Its folder is named by the digest, so it is never replaced.

        Args:
            **was_used: for what else, as `FrozenSet` has it.
        """
        digest = file_sha256(source)
        folder = self.folder / f"frozen-{digest[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        _copy(source, folder / source.name)
        return FrozenSet(
            file=f"{folder.name}/{source.name}",
            sha256=digest,
            count=count,
            from_version=from_version,
            **was_used,
        )

    def require_frozen(self, record: ChampionRecord) -> FrozenSet:
        """Return what the record says of the frozen data.

        Raises:
            ChampionGoneError: it names none.
        """
        if record.frozen is None:
            raise ChampionGoneError(f"{self.path} names no frozen data. Restore it from a backup.")
        return record.frozen

    def frozen_folder(self, frozen: FrozenSet, *, name: str) -> Path:
        """Return a folder with the frozen file under the name by which an evaluation reads it.

        Raises:
            ChampionGoneError: the frozen file is gone or was changed.
        """
        path = self.frozen_file(frozen)
        wanted = path.parent / "evaluated" / name
        wanted.parent.mkdir(exist_ok=True)
        _copy(path, wanted)
        return wanted.parent

    def frozen_file(self, frozen: FrozenSet) -> Path:
        """Return the frozen file, compared with its digest.

        Raises:
            ChampionGoneError: it is gone or was changed.
        """
        path = self.folder / frozen.file
        try:
            found = file_sha256(path)
        except OSError as error:
            raise ChampionGoneError(
                f"{path} cannot be read ({error}); champion and challenger can be compared on nothing else. Restore it."
            ) from error
        if found != frozen.sha256:
            raise ChampionGoneError(
                f"{path} was changed: sha256 is {found[:12]}…, it was frozen as {frozen.sha256[:12]}…. Restore it; "
                f"a comparison on changed pairs would not be one."
            )
        return path

    def write_training_prompts(self, version: int, prompt_ids: frozenset[str]) -> None:
        """Save the ids of the prompts that a version was trained on; the list outlives its training data."""
        path = self._training_prompts(version)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(f"{item}\n" for item in sorted(prompt_ids)))

    def training_prompts(self, version: int) -> frozenset[str]:
        """Return the ids of the prompts that a version was trained on.

        Raises:
            ChampionGoneError: the list is gone.
        """
        path = self._training_prompts(version)
        try:
            return frozenset(path.read_text(encoding="utf-8").split())
        except OSError as error:
            raise ChampionGoneError(
                f"{path} cannot be read ({error}); without it, the pairs that version {version} has seen are unknown. "
                f"Restore it from a backup."
            ) from error

    def _training_prompts(self, version: int) -> Path:
        return self.folder / "training-prompts" / f"version-{version}.txt"

    def _keep_artifacts(self, record: ChampionRecord) -> None:
        for role, version in (("champion", record.champion), ("before", record.before)):
            if version is None:
                continue
            history = StageHistory(self.store_dir, run_name=f"{self.name}-{role}", output_dir=self.folder)
            for stored in (version.model, version.certificate, version.pairs):
                history.remember(stored.stage, StageMemory(key=stored.key, identity={}, run_id=version.run_id))


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, temporary)
    temporary.chmod(0o644)
    temporary.replace(target)


def champion_name(run_name: str, kind: Kind) -> str:
    """The registered model's name."""
    return f"{run_name}-{kind.replace('_', '-')}"


def now() -> str:
    """The present time, UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def promoted_by_hand(record: ChampionRecord, version: int, *, by: str, reason: str) -> ChampionRecord:
    """The record after a person made that version champion.

    Raises:
        NoChampionError: there is no such version, or it is champion already.
    """
    found, champion = record.version(version), record.champion
    if found is None:
        known = ", ".join(str(item.number) for item in record.versions) or "none"
        raise NoChampionError(f"{record.name} has no version {version}. Versions: {known}.")
    if champion is not None and champion.number == version:
        raise NoChampionError(f"{record.name} version {version} is champion already; nothing was changed.")
    return _moved(record, "promoted", version, by=by, reason=reason)


def rolled_back(record: ChampionRecord, *, by: str, reason: str) -> ChampionRecord:
    """The record after a person restored the previous champion.

    Raises:
        NoChampionError: there is no champion, or none before it.
    """
    champion, before = record.champion, record.before
    if champion is None:
        raise NoChampionError(
            f"{record.name} has no champion yet. The first model that passes its gate in `rlhf retrain` becomes one."
        )
    if before is None:
        raise NoChampionError(
            f"{record.name} has no champion before version {champion.number} to go back to. "
            f"To take another version, use `rlhf promote --version N`."
        )
    return _moved(record, "rolled_back", before.number, by=by, reason=reason)


def _moved(record: ChampionRecord, kind: str, version: int, *, by: str, reason: str) -> ChampionRecord:
    champion = record.champion
    decision = Decision.model_validate(
        {
            "at": now(),
            "kind": kind,
            "version": version,
            "champion_before": champion.number if champion else None,
            "champion_after": version,
            "text": reason,
            "by": by,
        }
    )
    return record.model_copy(update={"decisions": (*record.decisions, decision)})
