"""The certificate of a reward model that gives a policy its rewards."""

from containers.contracts.certificate import Certificate
from containers.contracts.names import CERTIFICATE_FILE, CERTIFICATE_INPUT
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.models.loading import reward_model_folder
from containers.scoring.scorer import score_head_sha256


def require_certificate(
    context: StageContext, *, role: str = "reward_model", certificate: str = CERTIFICATE_INPUT
) -> Certificate:
    """Return the certificate of a reward model of the stage.

    The orchestrator has already checked that its gate opened or was waived; of a further reward model also that the
    certificate is about these weights.

    Args:
        role: the stage's input with the model.
        certificate: the stage's input with the certificate.

    Raises:
        MissingPrerequisiteError: the certificate is missing, unreadable, or that of another model or score head.
    """
    path = context.input_path(certificate) / CERTIFICATE_FILE
    try:
        found = Certificate.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MissingPrerequisiteError(
            f"The certificate of the reward model, {path}, cannot be read: {error}. Run evaluate_reward_model again."
        ) from error
    item, model = context.input(role), found.model
    if role == "reward_model" and model.digest != item.digest:
        raise MissingPrerequisiteError(
            f"The certificate is that of another reward model ({model.origin or model.digest}) than the one given "
            f"({item.origin or item.digest}). Run evaluate_reward_model on the model that gives the policy's rewards."
        )
    head = score_head_sha256(reward_model_folder(context.input_path(role)))
    if model.score_head_sha256 != head:
        raise MissingPrerequisiteError(
            f"The reward model's score head is sha256:{head[:16]}…, the certificate is about "
            f"sha256:{model.score_head_sha256[:16]}…: the model was changed after it was judged. Run "
            f"evaluate_reward_model again."
        )
    return found
