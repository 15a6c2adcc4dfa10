"""Configuration of evaluate_sets."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import BatchSize, BatchTokens, Confidence, Frozen, Shown, Tokens
from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import Judge, PeopleJudge
from containers.contracts.configs.parts.rewards import REWARD_MODEL_ALONE, RewardTerm

_OF_POLICY = "Leave it out: the run puts that of evaluate_policy here"


class EvaluateSetsConfig(Frozen):
    """The answers to standard sets, judged, with the models side by side."""

    stage: Literal["evaluate_sets"] = "evaluate_sets"
    confidence: Confidence = Field(0.95, description="Level of the confidence intervals")
    num_samples: Shown = Field(4, description="Items of each set shown that the policy lost, and as many that it won")
    sets: tuple[StandardSet, ...] = Field((), description="Leave it out: the run puts answer_sets.sets here")
    judges: tuple[Judge, ...] = Field((), description="Leave it out: the run puts evaluate_policy.judges here")
    rewards: tuple[RewardTerm, ...] = Field(REWARD_MODEL_ALONE, description=_OF_POLICY)
    rewards_trained_it: bool = Field(True, description=_OF_POLICY)
    batch_size: BatchSize = Field(16, ge=1, description=_OF_POLICY)
    score_batch_tokens: BatchTokens = Field(None, description=_OF_POLICY)
    max_prompt_length: Tokens = Field(2048, ge=4, description="Leave it out: the run puts that of answer_sets here")
    max_completion_length: Tokens = Field(
        1024, ge=1, description="Leave it out: the run puts that of answer_sets here, twice for talks of two turns"
    )

    def for_run(self, answering: AnswerSetsConfig, evaluation: EvaluatePolicyConfig) -> "EvaluateSetsConfig":
        """Return this configuration with the sets of the run and what judges its policy.

        Judges that need a reference answer, and people, do not judge chats.
        """
        asked = tuple(one for one in evaluation.judges if not one.needs_answer and not isinstance(one, PeopleJudge))
        update = {
            "sets": tuple(one.for_programs for one in answering.sets),
            "judges": asked if answering.has_chats else (),
            "max_prompt_length": answering.max_prompt_length,
            "max_completion_length": 2 * answering.max_completion_length,
            "rewards": evaluation.rewards,
            "rewards_trained_it": evaluation.rewards_trained_it,
            "batch_size": evaluation.batch_size,
            "score_batch_tokens": evaluation.score_batch_tokens,
        }
        return self.model_copy(update=update)

    @property
    def evaluation(self) -> EvaluatePolicyConfig:
        """What judges need of a configuration."""
        return EvaluatePolicyConfig(
            judges=self.judges,
            rewards=self.rewards,
            rewards_trained_it=self.rewards_trained_it,
            batch_size=self.batch_size,
            score_batch_tokens=self.score_batch_tokens,
            max_prompt_length=self.max_prompt_length,
            max_completion_length=self.max_completion_length,
        )
