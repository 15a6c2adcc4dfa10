"""The reward that RLOO optimises: the reward model's score, less a penalty for completions that were cut off."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from containers.contracts.names import MERGED_FOLDER
from containers.stages.context import StageContext
from containers.stages.errors import DivergedError
from containers.stages.models import compute_device, compute_dtype, load_reward_model, load_tokenizer
from containers.stages.scoring import RewardScorer


def load_scorer(context: StageContext, *, batch_size: int) -> RewardScorer:
    """The scorer of the stage's `reward_model` input, for conversations as long as that model has positions.

    Args:
        batch_size: conversations per forward.

    Raises:
        MissingPrerequisiteError: the input is missing or damaged, or has no score head.
    """
    folder = context.input_path("reward_model") / MERGED_FOLDER
    profile = context.spec.profile
    model = load_reward_model(folder, dtype=compute_dtype(profile), device=compute_device(profile))
    tokenizer = load_tokenizer(folder, origin=context.input("reward_model").origin)
    return RewardScorer(model, tokenizer, max_length=model.config.max_position_embeddings, batch_size=batch_size)


class PolicyReward:
    """Reward function for TRL's RLOOTrainer, which subtracts beta × KL from what it returns.

    It scores whole conversations with the scorer that the evaluation stages use, so that a completion has one score
    everywhere. TRL's own road scores chat completions in a template that hides a cut-off, and replaces NaN by a zero
    advantage without a word.

    Args:
        end_ids: ids of the tokens that end a completion.
        missing_eos_penalty: subtracted where none of them stands at the end of the completion.
    """

    def __init__(self, scorer: RewardScorer, *, end_ids: Sequence[int], missing_eos_penalty: float) -> None:
        self._scorer = scorer
        self._end_ids = frozenset(end_ids)
        self._missing_eos_penalty = missing_eos_penalty

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
        conversations = [[*prompt, *reply] for prompt, reply in zip(prompts, completions, strict=True)]
        try:
            scores = self._scorer.score(conversations)
        except DivergedError as error:
            raise DivergedError(f"Step {trainer_state.global_step + 1}: {error}") from error
        ended = [bool(ids) and ids[-1] in self._end_ids for ids in completion_ids]
        log_extra("score", list(scores))
        log_extra("ended", ended)
        log_extra("num_tokens", [len(ids) for ids in completion_ids])
        log_metric("score", sum(scores) / len(scores))
        log_metric("ended_fraction", sum(ended) / len(ended))
        return [score if done else score - self._missing_eos_penalty for score, done in zip(scores, ended, strict=True)]
