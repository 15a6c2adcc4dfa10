"""What the chat templates of policy and reward model do to the policy's prompts, told before the first rollout."""

from collections.abc import Sequence
from typing import Any

from containers.harness.context import StageContext
from containers.models.chat_template import peculiarities
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all
from containers.rollouts.prompts import PolicyPrompt
from containers.scoring.scorer import RewardScorer


def note_policy_template(context: StageContext, tokenizer: Any, prompts: Sequence[PolicyPrompt]) -> None:
    """Warn of what the policy's chat template makes up, and of what it loses of the prompts."""
    for peculiarity in peculiarities(tokenizer, setting="train_sft.chat_template"):
        context.recorder.note(f"Warning: {peculiarity}")
    losses = TemplateLosses()
    asked = [prompt.conversation for prompt in prompts]
    tokens_of_all(tokenizer, asked, add_generation_prompt=True, for_the_policy=True, losses=losses)
    _note(context, losses, name="start model")


def note_reward_model_template(
    context: StageContext, scorer: RewardScorer, prompts: Sequence[PolicyPrompt]
) -> list[str]:
    """Warn of what the reward model's chat template loses of the prompts.

    Returns:
        Of each prompt the token that the reward model has no row for, so that no answer to it has a score; or "".

    Raises:
        BadConfigError: the template refuses an answered prompt.
    """
    losses, answer = TemplateLosses(), {"role": "assistant", "content": "answer"}
    asked = [[*prompt.conversation, answer] for prompt in prompts]
    seen = tokens_of_all(scorer.tokenizer, asked, losses=losses)
    _note(context, losses, name="reward model")
    return [scorer.token_without_row(token_ids) for token_ids in seen]


def _note(context: StageContext, losses: TemplateLosses, *, name: str) -> None:
    if words := losses.in_words():
        context.recorder.note(f"Prompts, as the {name} sees them: {words}")
