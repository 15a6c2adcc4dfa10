"""What chat templates do to the policy's prompts: how they open an answer, what they lose; noted before training."""

from collections.abc import Sequence
from typing import Any

from containers.harness.context import StageContext
from containers.models.chat_template import knows_thinking, peculiarities, thinking
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import prompt_token_ids, tokens_of_all
from containers.rollouts.prompts import PolicyPrompt
from containers.scoring.scorer import RewardScorer


def opening_of(tokenizer: Any, *, thinks: bool) -> str:
    """Return the text that the chat template writes for the policy after a prompt, such as `assistant: <think>`."""
    question = [{"role": "user", "content": "question"}]
    plain, opened = (
        str(tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=opens, **thinking(thinks)))
        for opens in (False, True)
    )
    return opened.removeprefix(plain) if opened.startswith(plain) else ""


def note_policy_template(
    context: StageContext, tokenizer: Any, prompts: Sequence[PolicyPrompt], *, thinks: bool
) -> None:
    """Warn of text that the policy's chat template adds, of turns that it leaves out, and that it knows no thoughts."""
    if thinks and not knows_thinking(tokenizer):
        context.recorder.note(
            "Warning: train_policy.enable_thinking changes nothing: the chat template of the start model lacks it."
        )
    for peculiarity in peculiarities(tokenizer, setting="train_sft.chat_template"):
        context.recorder.note(f"Warning: {peculiarity}")
    losses = TemplateLosses()
    prompt_token_ids(tokenizer, [prompt.conversation for prompt in prompts], thinks=thinks, losses=losses)
    _note(context, losses, name="start model")


def note_reward_model_template(
    context: StageContext, scorer: RewardScorer, prompts: Sequence[PolicyPrompt]
) -> list[str]:
    """Warn of turns that the reward model's chat template leaves out of the prompts.

    Returns:
        For each prompt, its token without a row in the reward model, so that no answer to it has a score; or "".

    Raises:
        BadConfigError: the template refuses a prompt with an answer.
    """
    losses, answer = TemplateLosses(), {"role": "assistant", "content": "answer"}
    asked = [[*prompt.conversation, answer] for prompt in prompts]
    seen = tokens_of_all(scorer.tokenizer, asked, losses=losses)
    _note(context, losses, name="reward model")
    return [scorer.token_without_row(token_ids) for token_ids in seen]


def _note(context: StageContext, losses: TemplateLosses, *, name: str) -> None:
    if words := losses.text():
        context.recorder.note(f"Prompts, as the {name} sees them: {words}")
