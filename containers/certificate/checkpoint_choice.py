"""The checkpoint was chosen on the pairs that certify the model: how much better the accuracy looks by that.

Where evaluations were of some of these pairs only, the figure was seen in part, and this is more than the truth.
"""

import json
from pathlib import Path

from containers.contracts.certificate import CheckpointChoice
from containers.contracts.funnel import Funnel
from containers.contracts.names import FUNNEL_FILE, TEST_PAIRS_FILE, TRAINER_STATE_FILE, TUNE_PAIRS_FILE
from containers.data.pairs import same_pairs
from containers.evals.intervals import clustered_mean
from containers.evals.scored_suite import ScoredSuite
from containers.evals.statistics import optimism_of_choice, pair_credits
from containers.harness.context import StageContext
from containers.harness.errors import MissingPrerequisiteError


def choice_on_test_pairs(context: StageContext, test: ScoredSuite) -> CheckpointChoice | None:
    """Return the choice; None where the tune pairs are others, or only one checkpoint was compared.

    Raises:
        MissingPrerequisiteError: the trainer's state or the tune pairs cannot be read.
    """
    num_pairs = same_pairs(context.input_path("pairs"), TUNE_PAIRS_FILE, TEST_PAIRS_FILE)
    num_checkpoints = _num_compared(context.input_path("reward_model") / TRAINER_STATE_FILE)
    if not num_pairs or num_checkpoints < 2:
        return None
    right = clustered_mean(pair_credits([pair.margin for pair in test.pairs]), [pair.prompt_id for pair in test.pairs])
    return CheckpointChoice(
        num_pairs=num_pairs,
        num_checkpoints=num_checkpoints,
        optimism=optimism_of_choice(right.variance**0.5, num_choices=num_checkpoints),
        by_setting=_is_by_setting(context.input_path("pairs") / FUNNEL_FILE),
    )


def _is_by_setting(path: Path) -> bool:
    """Whether the configuration demands no tune pairs; false where the funnel does not say."""
    try:
        parts = Funnel.model_validate_json(path.read_bytes()).validation_parts
    except (OSError, ValueError):
        return False
    return any(part.name == "tune" and part.share == 0 for part in parts)


def _num_compared(path: Path) -> int:
    """Checkpoints whose `eval_loss` the trainer compared; 0 without a state, as of a model trained elsewhere."""
    if not path.is_file():
        return 0
    try:
        history = json.loads(path.read_bytes())["log_history"]
        return len({entry["step"] for entry in history if "eval_loss" in entry})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MissingPrerequisiteError(f"{path} cannot be read: {error!r}") from error
