"""What the policy stage demands before it optimises a reward model: the certificate of that very model."""

from containers.contracts.certificate import Certificate
from containers.contracts.names import CERTIFICATE_FILE, CERTIFICATE_INPUT
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError
from containers.models.loading import reward_model_folder
from containers.scoring.scorer import score_head_sha256


def demand_certificate(context: StageContext) -> Certificate:
    """The certificate of the stage's `reward_model`.

    Whether its gate opened, or was waived, has been judged by who starts the stage.

    Raises:
        MissingPrerequisiteError: there is none, it cannot be read, or it is that of another model or score head.
    """
    path = context.input_path(CERTIFICATE_INPUT) / CERTIFICATE_FILE
    try:
        certificate = Certificate.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MissingPrerequisiteError(
            f"The certificate of the reward model, {path}, cannot be read: {error}. Run evaluate_reward_model again."
        ) from error
    item, model = context.input("reward_model"), certificate.model
    if model.digest != item.digest:
        raise MissingPrerequisiteError(
            f"The certificate is that of another reward model ({model.origin or model.digest}) than the one given "
            f"({item.origin or item.digest}). Run evaluate_reward_model on the model that the policy is to be trained "
            f"against."
        )
    head = score_head_sha256(reward_model_folder(context.input_path("reward_model")))
    if model.score_head_sha256 != head:
        raise MissingPrerequisiteError(
            f"The reward model's score head is sha256:{head[:16]}…, the certificate is about "
            f"sha256:{model.score_head_sha256[:16]}…: the model was changed after it was judged. Run "
            f"evaluate_reward_model again."
        )
    return certificate
