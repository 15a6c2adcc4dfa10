"""Hold a reward model that is an adapter on the policy's frozen weights against what its training logged.

The certificate is of the exported model. On the policy's weights, which may be held in another precision, the same
adapter must give the same rewards: it is tried on the logged pairs before the policy's first step.
"""

from pathlib import Path

from containers.evals.sample_predictions import both_conversations, read_sample_predictions
from containers.harness.errors import StageError
from containers.scoring.margin_gap import MarginGap
from containers.scoring.scorer import RewardScorer


def hold_on_base(artifact: Path, scorer: RewardScorer, *, base: str) -> str:
    """Return, as a sentence, how far margins and orders of the logged pairs are from those of training.

    Args:
        artifact: of the reward model.
        scorer: of its adapter on the policy's weights.
        base: how these weights are held, for messages.

    Raises:
        StageError: a margin differs by more than 15 % of a typical one, or more than one order in twenty changes.
        MissingPrerequisiteError: the artifact has no logged pairs.
    """
    samples = [
        sample for sample in read_sample_predictions(artifact) if all(map(scorer.fits, both_conversations(sample)))
    ]
    if not samples:
        return f"No logged pair fits, so the reward model on the policy's {base} weights was not compared."
    logged = [score for sample in samples for score in (sample.score_chosen, sample.score_rejected)]
    gap = MarginGap.of(logged, scorer.score([side for sample in samples for side in both_conversations(sample)]))
    text = f"on pairs that its training logged, with the start model's {base} weights, {gap}"
    if not gap.is_allowed:
        raise StageError(
            f"The reward model in {artifact} is not the certified one there: {text}. Train the reward model with the "
            "same quantization as the policy (train_reward_model.quantization, train_policy.quantization), or leave "
            "it out of both."
        )
    return f"The reward model holds: {text}."
