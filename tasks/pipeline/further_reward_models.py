"""The reward models beside the run's own, by which several together give the rewards; each has its certificate."""

from pathlib import Path

from pydantic import ValidationError

from containers.contracts.certificate import Certificate
from containers.contracts.configs.parts.rewards import FurtherRewardModel
from containers.contracts.digests import artifact_digest, file_sha256, read_manifest
from containers.contracts.names import (
    ADAPTER_FOLDER,
    ADAPTER_WEIGHTS_FILE,
    CERTIFICATE_FILE,
    CERTIFICATE_INPUT,
    MANIFEST_FILE,
    MERGED_FOLDER,
)
from containers.contracts.records import GateVerdict
from containers.contracts.spec import StageInput
from tasks.config.gates import RewardModelGate, judge_reward_model
from tasks.config.run import RunConfig
from tasks.config.sources import model_source
from tasks.pipeline.reward_models import known_reward_model, named_reward_model
from tasks.sources.errors import UnusableSourceError

# The run's own reward model is the first.
_FIRST = 2


def further_model_inputs(run: RunConfig, ask_hub: bool) -> tuple[StageInput, ...]:
    """One input `reward_model_<number>` for each; `ask_hub` as in `filter_dataset_inputs`.

    Raises:
        SourceError: one is not available.
    """
    find = named_reward_model if ask_hub else known_reward_model
    found = (_with_adapter(find(model_source(other))) for other in run.further_reward_models)
    return tuple(
        item.model_copy(update={"name": f"{item.name}_{number}"}) for number, item in enumerate(found, start=_FIRST)
    )


def _with_adapter(item: StageInput) -> StageInput:
    """The artifact of the training around a merged model, so that the stage may put its adapter on a base it has.

    It is still known by its merged weights. An adapter that was changed after the training is left out.
    """
    folder = Path(item.path).parent
    weights = folder / ADAPTER_FOLDER / ADAPTER_WEIGHTS_FILE
    if Path(item.path).name != MERGED_FOLDER or not weights.is_file() or not (folder / MANIFEST_FILE).is_file():
        return item
    name = weights.relative_to(folder).as_posix()
    recorded = {entry.path: entry.sha256 for entry in read_manifest(folder).files}
    return item.model_copy(update={"path": str(folder)}) if recorded.get(name) == file_sha256(weights) else item


def further_certificate_inputs(run: RunConfig) -> tuple[StageInput, ...]:
    """One input `certificate_<number>` for each.

    Raises:
        UnusableSourceError: there is no certificate.
    """
    return tuple(
        StageInput(
            name=f"{CERTIFICATE_INPUT}_{number}",
            path=str(certificate_file(other.certificate).parent),
            digest=f"sha256:{file_sha256(certificate_file(other.certificate))}",
            origin=other.certificate,
        )
        for number, other in enumerate(run.further_reward_models, start=_FIRST)
    )


def certificate_file(named: str) -> Path:
    """The file of a certificate that a configuration names, itself or by its folder.

    Raises:
        UnusableSourceError: there is none.
    """
    place = Path(named).expanduser()
    file = place / CERTIFICATE_FILE if place.is_dir() else place
    if not file.is_file() or file.name != CERTIFICATE_FILE:
        raise UnusableSourceError(
            f"{named} is no {CERTIFICATE_FILE}, and no folder that has one.",
            "Name the artifact of evaluate_reward_model of the run that made the model, or what `rlhf certify` wrote.",
        )
    return file.absolute()


def verdict_on(model: FurtherRewardModel, gate: RewardModelGate) -> GateVerdict:
    """The gate's verdict on a further reward model, by its certificate.

    Raises:
        SourceError: the model is not available.
        UnusableSourceError: the certificate cannot be read, or is about another model.
    """
    file = certificate_file(model.certificate)
    try:
        certificate = Certificate.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise UnusableSourceError(f"{file} cannot be read: {error}", "Run evaluate_reward_model again.") from error
    item = named_reward_model(model_source(model))
    if certificate.model.digest not in _digests(item):
        raise UnusableSourceError(
            f"{file} is about another reward model, {certificate.model.origin or 'of unknown origin'}, and not about "
            f"{item.origin or item.path}.",
            "Name the certificate of this very model.",
        )
    return judge_reward_model(certificate, gate)


def _digests(item: StageInput) -> set[str]:
    """By what a certificate may call the model: as the run names it, or as the artifact that it lies in."""
    found, folder = {item.digest}, Path(item.path).resolve()
    for place in (folder, folder.parent):
        if (place / MANIFEST_FILE).is_file():
            found.add(artifact_digest(read_manifest(place)))
    return found
