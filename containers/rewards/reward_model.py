"""The reward that RLOO optimises: the reward model's score, normalised where that is asked for, less a penalty for
completions that were cut off."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.contracts.certificate import ScoreStatistics
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.distributed.devices import compute_device, compute_dtype
from containers.evals.score_statistics import normalised
from containers.harness.context import StageContext
from containers.harness.errors import DivergedError
from containers.models.loading import load_reward_model, load_tokenizer, position_limit, reward_model_folder
from containers.scoring.scorer import RewardScorer


def load_scorer(context: StageContext, *, batch_size: int) -> RewardScorer:
    """The scorer of the stage's `reward_model` input, for conversations as long as that model has positions.

    Args:
        batch_size: conversations per forward, at most; the stage's `score_batch_tokens` bounds them too.

    Raises:
        MissingPrerequisiteError: the input is missing or damaged, or has no score head.
    """
    folder = reward_model_folder(context.input_path("reward_model"))
    profile = context.spec.profile
    model = load_reward_model(folder, dtype=compute_dtype(profile), device=compute_device(profile))
    tokenizer = load_tokenizer(folder, origin=context.input("reward_model").origin)
    config = context.spec.config
    batch_tokens = config.score_batch_tokens if isinstance(config, TrainPolicyConfig | EvaluatePolicyConfig) else None
    return policy_scorer(model, tokenizer, batch_size=batch_size, batch_tokens=batch_tokens)


def policy_scorer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int, batch_tokens: int | None = None
) -> RewardScorer:
    """The scorer of the policy stages: conversations may be as long as the reward model has positions."""
    return RewardScorer(
        model, tokenizer, max_length=position_limit(model), batch_size=batch_size, batch_tokens=batch_tokens
    )


class PolicyReward:
    """Reward function for TRL's RLOOTrainer, which subtracts beta × KL from what it returns.

    It scores whole conversations with the scorer that the evaluation stages use, so that a completion has one score
    everywhere. TRL's own road scores chat completions in a template that hides a cut-off, and replaces NaN by a zero
    advantage without a word.

    Args:
        end_ids: ids of the tokens that end a completion.
        missing_eos_penalty: subtracted where none of them stands at the end of the completion.
        normalisation: mean and standard deviation that turn a score into a reward; None: the score is the reward.
    """

    def __init__(
        self,
        scorer: RewardScorer,
        *,
        end_ids: Sequence[int],
        missing_eos_penalty: float,
        normalisation: ScoreStatistics | None = None,
    ) -> None:
        self._scorer = scorer
        self._normalisation = normalisation
        self._end_ids = frozenset(end_ids)
        self._missing_eos_penalty = missing_eos_penalty

    def scores(
        self, prompts: Sequence[Sequence[Mapping[str, str]]], completions: Sequence[Sequence[Mapping[str, str]]]
    ) -> list[float]:
        """The score of each completion, before any penalty; raises as the scorer's `score_written`."""
        whole = [[*prompt, *reply] for prompt, reply in zip(prompts, completions, strict=True)]
        return self._scorer.score_written(whole)

    def __call__(
        self,
        *,
        prompts: Sequence[Sequence[Mapping[str, str]]],
        completions: Sequence[Sequence[Mapping[str, str]]],
        completion_ids: Sequence[Sequence[int]],
        trainer_state: Any,
        log_extra: Callable[[str, list[Any]], None],
        log_metric: Callable[[str, float], None],
        **columns: Any,
    ) -> list[float]:
        """One reward per completion, in order; `columns`, the dataset's further columns, are not used.

        Args:
            prompts: P * K conversations; the K completions of a prompt are adjacent.
            completions: for each prompt one assistant message.
            completion_ids: token ids of each completion, with the ending token where it ended.

        Raises:
            DivergedError: a score is not finite; names the step.

        Example: a completion that was cut off, of score 0.5, with a penalty of 1.0 has the reward -0.5.
        """
        try:
            scores = self.scores(prompts, completions)
        except DivergedError as error:
            raise DivergedError(f"Step {trainer_state.global_step + 1}: {error}") from error
        ended = [bool(ids) and ids[-1] in self._end_ids for ids in completion_ids]
        log_extra("score", list(scores))
        log_extra("ended", ended)
        log_extra("num_tokens", [len(ids) for ids in completion_ids])
        log_metric("score", sum(scores) / len(scores))
        log_metric("ended_fraction", sum(ended) / len(ended))
        rewards = scores if self._normalisation is None else normalised(scores, self._normalisation)
        return [
            reward if done else reward - self._missing_eos_penalty for reward, done in zip(rewards, ended, strict=True)
        ]
