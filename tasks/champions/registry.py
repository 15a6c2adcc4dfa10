"""Update the MLflow model registry from the champion's file in the store. The registry shows; the file is the truth.

Every step may be repeated without harm: if the registry was away, lost, or left half way, the next call completes it.
Weights stay in the store: a registered version holds manifest, certificate, lineage, and the adapter if there is one.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from containers.contracts.names import (
    ADAPTER_FOLDER,
    CERTIFICATE_FILE,
    MANIFEST_FILE,
    POLICY_EVALUATION_FILE,
)
from tasks.champions.book import ChampionBook
from tasks.champions.record import ChampionRecord, ModelVersion
from tasks.config.logins import without_login
from tasks.mlflow_sync.artifact_places import OtherPlaceError, upload_model_files
from tasks.mlflow_sync.parts import experiment_id_of
from tasks.mlflow_sync.sending import mlflow_client

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

CHAMPION, CHALLENGER = "champion", "challenger"
VERSION_TAG = "rlhf.version"
_DIGEST_TAG = "rlhf.digest"
_MAX_TAG_CHARACTERS = 5000
_DECISION_FILE = "decisions.json"


class Registry:
    """The registered model of one line of champions.

    Args:
        uri: MLflow server, or a database that MLflow opens.
        experiment: the MLflow experiment in which the models are logged.
    """

    def __init__(self, uri: str, *, experiment: str) -> None:
        self.uri = uri.rstrip("/")
        self._experiment = experiment
        self._without_files: dict[int, str] = {}

    def reconcile(self, book: ChampionBook, record: ChampionRecord) -> str:
        """Register what is missing, and set aliases and tags from the record. Return the problem; empty: done.

        A missing version whose artifact is no longer in the store is skipped. If the server names a place for files
        that is not its own, versions are registered without files.
        """
        if not record.versions:
            return ""
        self._without_files = {}
        try:
            client = mlflow_client(self.uri)
            self._ensure_model(client, record)
            numbers = self._ensure_versions(client, book, record)
            _set_aliases(client, record, numbers)
        except Exception as error:  # any error of MLflow: the file is written, and the registry can wait
            logger.warning("MLflow at %s does not show the champions of %s: %s", self.uri, record.name, error)
            reason = str(error).partition("\n")[0].partition(" with exception")[0]
            return (
                f"MLflow at {self.uri} could not be updated with the champion ({reason[:120]}). The record is in "
                f"{book.path}; the next retraining, promotion or rollback updates MLflow."
            )
        return self._files_problem(record)

    def _files_problem(self, record: ChampionRecord) -> str:
        """Which versions were registered without files in the last `reconcile`, and why; empty: none."""
        if not self._without_files:
            return ""
        numbers = ", ".join(str(number) for number in self._without_files)
        return (
            f"MLflow at {without_login(self.uri)} shows {record.name} without the files of version {numbers}: "
            f"{next(iter(self._without_files.values()))}. The files themselves are in the store."
        )

    def _ensure_model(self, client: "MlflowClient", record: ChampionRecord) -> None:
        from mlflow.exceptions import MlflowException

        if client.search_registered_models(f"name = '{record.name}'"):
            return
        try:
            client.create_registered_model(
                record.name,
                tags={"rlhf.kind": record.kind},
                description=f"Champions of `{record.name}`. The alias `champion` is moved by `rlhf retrain`, `rlhf "
                "promote` and `rlhf rollback` only; a change made here is put back.",
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another retraining was a moment faster
                raise

    def _ensure_versions(self, client: "MlflowClient", book: ChampionBook, record: ChampionRecord) -> dict[int, str]:
        """Register missing versions and update tags. Return our number → MLflow's, for versions in MLflow."""
        known = {
            (item.tags.get(VERSION_TAG), item.tags.get(_DIGEST_TAG)): item
            for item in client.search_model_versions(f"name = '{record.name}'")
        }
        numbers: dict[int, str] = {}
        for version in record.versions:
            tags = _tags(book, record, version)
            there = known.get((str(version.number), version.model.digest))
            if there is None:
                made = self._register(client, book, record, version, tags)
                if made is not None:
                    numbers[version.number] = made
                continue
            numbers[version.number] = str(there.version)
            for key, value in tags.items():
                if there.tags.get(key) != value:
                    client.set_model_version_tag(record.name, str(there.version), key, value)
        return numbers

    def _register(
        self,
        client: "MlflowClient",
        book: ChampionBook,
        record: ChampionRecord,
        version: ModelVersion,
        tags: Mapping[str, str],
    ) -> str | None:
        """Log the model's files and register them. Return MLflow's number, or None if the artifact is gone."""
        from mlflow.exceptions import MlflowException
        from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

        if not Path(book.artifact(version.model).path).is_dir():
            return None
        source_run = version.mlflow_run_id
        try:
            client.get_run(source_run)
        except MlflowException:  # the run was on a server that was lost
            source_run = ""
        model = client.create_logged_model(
            experiment_id_of(client, self._experiment),
            name=record.name,
            source_run_id=source_run or None,
            tags=dict(tags),
            model_type=record.kind,
        )
        with _papers(book, record, version) as folder:
            try:
                upload_model_files(client, model, folder)
            except OtherPlaceError as error:
                self._without_files[version.number] = str(error)
                logger.warning("Version %d of %s: %s", version.number, record.name, error)
        client.finalize_logged_model(model.model_id, "READY")
        made = client.create_model_version(
            record.name,
            # A server finds the model by its id; for a database, MLflow would query the process's default server.
            source=f"models:/{model.model_id}" if self.uri.startswith("http") else model.artifact_location,
            run_id=source_run or None,
            tags=dict(tags),
            description=_description(book, version),
            await_creation_for=0,
            model_id=model.model_id,
        )
        shown = f'[{{"name": "{record.name}", "version": {made.version}}}]'
        client.set_logged_model_tags(model.model_id, {MLFLOW_MODEL_VERSIONS: shown})
        return str(made.version)


def _set_aliases(client: "MlflowClient", record: ChampionRecord, numbers: Mapping[int, str]) -> None:
    """Set `champion` to the present champion, and `challenger` to the newest version if that is another."""
    champion, newest = record.champion, record.versions[-1]
    wanted = {
        CHAMPION: numbers.get(champion.number) if champion else None,
        CHALLENGER: numbers.get(newest.number) if newest != champion else None,
    }
    present = {alias: str(number) for alias, number in client.get_registered_model(record.name).aliases.items()}
    for alias, number in wanted.items():
        if number is None and alias in present:
            client.delete_registered_model_alias(record.name, alias)
        elif number is not None and present.get(alias) != number:
            client.set_registered_model_alias(record.name, alias, number)


def _tags(book: ChampionBook, record: ChampionRecord, version: ModelVersion) -> dict[str, str]:
    """Tags with lineage, figures and the last decision about the version."""
    artifact = book.artifact(version.model)
    last = record.last_word_on(version.number)
    tags = {
        VERSION_TAG: str(version.number),
        _DIGEST_TAG: version.model.digest,
        "rlhf.key": version.model.key,
        "rlhf.artifact": artifact.path,
        "rlhf.certificate": book.artifact(version.certificate).path,
        "rlhf.pairs": version.pairs.shown,
        "rlhf.dataset": "; ".join(f"{item.origin} ({item.digest})" for item in version.dataset),
        "rlhf.gate": "; ".join(f"{rule.name}: {rule.found}, wanted {rule.wanted}" for rule in version.gate.rules),
        "rlhf.run_id": version.run_id,
        "rlhf.mlflow_run_id": version.mlflow_run_id,
        "rlhf.flow_run": version.flow_run,
    }
    tags |= {f"rlhf.figure.{metric.name.replace('/', '.')}": f"{metric.value:.6g}" for metric in version.figures}
    if last is not None:
        tags |= {"rlhf.decision": last.kind, "rlhf.decided_at": last.at, "rlhf.reason": last.text, "rlhf.by": last.by}
    return {key: value[:_MAX_TAG_CHARACTERS] for key, value in tags.items() if value}


def _description(book: ChampionBook, version: ModelVersion) -> str:
    return (
        f"Weights: `{book.artifact(version.model).path}` (digest `{version.model.digest}`), made {version.made_at} by "
        f"run `{version.run_id}` from {version.dataset_text}."
    )


@contextmanager
def _papers(book: ChampionBook, record: ChampionRecord, version: ModelVersion) -> Iterator[Path]:
    """Yield a temporary folder with the files that MLflow keeps of the model."""
    model, certificate = Path(book.artifact(version.model).path), Path(book.artifact(version.certificate).path)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for source, name in (
            (model / MANIFEST_FILE, MANIFEST_FILE),
            (certificate / CERTIFICATE_FILE, CERTIFICATE_FILE),
            (certificate / POLICY_EVALUATION_FILE, POLICY_EVALUATION_FILE),
        ):
            if source.is_file():
                shutil.copyfile(source, folder / name)
        (folder / "version.json").write_text(version.model_dump_json(indent=1), encoding="utf-8")
        decision = record.last_word_on(version.number)
        if decision is not None:
            text = decision.model_dump_json(indent=1, exclude={"asked"})
            (folder / _DECISION_FILE).write_text(text, encoding="utf-8")
        if (model / ADAPTER_FOLDER).is_dir():
            shutil.copytree(model / ADAPTER_FOLDER, folder / ADAPTER_FOLDER)
        yield folder
