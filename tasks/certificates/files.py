"""Read certificates of reward models from disk, with the scores of every pair beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from containers.contracts.certificate import Certificate, SuiteEvaluation
from containers.contracts.names import CERTIFICATE_FILE, StageName
from containers.evals.item_scores import read_item_scores
from containers.evals.suites.base import ScoredItem

# Below a run's output folder.
_IN_A_RUN = Path("artifacts") / StageName.EVALUATE_REWARD_MODEL


class CertificateError(Exception):
    """A certificate is missing or cannot be read; the message says what to do."""


@dataclass(frozen=True)
class CertificateOnDisk:
    """A certificate, its name in tables, and its folder."""

    name: str
    folder: Path
    certificate: Certificate

    def suite(self, name: str) -> SuiteEvaluation | None:
        """Return the evaluation on that suite; None if the model was not judged by it."""
        return next((suite for suite in self.certificate.suites if suite.name == name), None)

    def scored_items(self, suite: str) -> dict[str, ScoredItem]:
        """Return the items of a suite by their ids, with the model's scores.

        Raises:
            CertificateError: the scores are missing or damaged.
        """
        known = self.suite(suite)
        if known is None:
            return {}
        path = self.folder / known.item_scores_file
        try:
            return read_item_scores(path)
        except (OSError, pa.ArrowException) as error:
            raise CertificateError(
                f"{path}, the scores behind {self.name}'s certificate, cannot be read: {error}. Run its evaluation "
                "again."
            ) from error


def read_certificates(places: Sequence[Path]) -> tuple[CertificateOnDisk, ...]:
    """Return the certificates at those places: each a run's output folder, an artifact, or the file itself.

    Raises:
        CertificateError: places have no readable certificate (it names them all), or a model is named twice.
    """
    found, problems = [], []
    for place in places:
        try:
            found.append(_read(place))
        except CertificateError as error:
            problems.append(str(error))
    if problems:
        raise CertificateError("\n".join(problems))
    return _with_own_names(found)


def _read(place: Path) -> CertificateOnDisk:
    candidates = (place, place / CERTIFICATE_FILE, place / _IN_A_RUN / CERTIFICATE_FILE)
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise CertificateError(
            f"{place} holds no {CERTIFICATE_FILE}. Name the output folder of a run that reached evaluate_reward_model, "
            "or of `rlhf certify`, or the file itself."
        )
    try:
        certificate = Certificate.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise CertificateError(f"{path} cannot be read as a certificate: {error}") from error
    is_of_a_run = path == place / _IN_A_RUN / CERTIFICATE_FILE
    folder = place if is_of_a_run or place.is_dir() else place.parent
    return CertificateOnDisk(name=folder.resolve().name, folder=path.parent, certificate=certificate)


def _with_own_names(found: Sequence[CertificateOnDisk]) -> tuple[CertificateOnDisk, ...]:
    """Return the certificates; those whose folders share a name get their path as name."""
    names = [item.name for item in found]
    named = [
        item if names.count(item.name) == 1 else CertificateOnDisk(str(item.folder), item.folder, item.certificate)
        for item in found
    ]
    twice = sorted({item.name for item in named if [other.name for other in named].count(item.name) > 1})
    if twice:
        raise CertificateError(f"{', '.join(twice)} is named twice. A model is compared with others, not with itself.")
    return tuple(named)
