"""What the chat templates of policy and reward model do to the policy's prompts, told before the first rollout."""

from collections.abc import Sequence
from typing import Any

from containers.harness.context import StageContext
from containers.models.chat_template import peculiarities
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all
from containers.rollouts.prompts import PolicyPrompt
from containers.scoring.scorer import RewardScorer


def note_templates(
    context: StageContext, tokenizer: Any, scorer: RewardScorer, prompts: Sequence[PolicyPrompt]
) -> list[str]:
    """Warn of what the chat templates of policy and reward model make up, and lose of the prompts.

    Returns:
        Of each prompt the token that the reward model has no row for, so that no answer to it has a reward; or "".

    Raises:
        BadConfigError: the reward model's template refuses an answered prompt.
    """
    for peculiarity in peculiarities(tokenizer, setting="train_sft.chat_template"):
        context.recorder.note(f"Warning: {peculiarity}")
    of_policy, of_scorer = TemplateLosses(), TemplateLosses()
    asked = [prompt.conversation for prompt in prompts]
    tokens_of_all(tokenizer, asked, add_generation_prompt=True, for_the_policy=True, losses=of_policy)
    answer = {"role": "assistant", "content": "answer"}
    seen = tokens_of_all(scorer.tokenizer, [[*conversation, answer] for conversation in asked], losses=of_scorer)
    for name, losses in (("start model", of_policy), ("reward model", of_scorer)):
        if words := losses.in_words():
            context.recorder.note(f"Prompts, as the {name} sees them: {words}")
    return [scorer.token_without_row(token_ids) for token_ids in seen]
