"""The answers of start model and policy to open questions, as the pairs that judges read."""

from collections.abc import Mapping, Sequence

from containers.contracts.configs.answer_sets import StandardSet
from containers.evals.sets.base import SetItem
from containers.evals.sets.records import SetModel
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt
from containers.rollouts.sampled import Sampled
from containers.rollouts.set_answers import SetAnswer, asked


def chat_pairs(
    chats: Sequence[StandardSet],
    items: Mapping[str, Sequence[SetItem]],
    answers: Sequence[SetAnswer],
    *,
    opening: str,
) -> Sampled:
    """Return the first answer of policy and start model to each item that both answered.

    The domain of a prompt is the name of its set. An item of several turns has the whole talk after its first question
    as the answer, so that a judge sees how each model goes on.

    Args:
        opening: what the chat template writes before the policy's answers.
    """
    first: dict[tuple[str, str], dict[str, SetAnswer]] = {}
    for answer in answers:
        if answer.number == 0 and not answer.problem:
            first.setdefault((answer.set, answer.item_id), {})[answer.model] = answer
    prompts: list[PolicyPrompt] = []
    policy: list[Completion] = []
    start: list[Completion] = []
    sides: tuple[tuple[SetModel, list[Completion]], ...] = (("policy", policy), ("start", start))
    for one in chats:
        for item in items[one.name]:
            found = first.get((one.name, item.item_id), {})
            if "policy" not in found or "start" not in found:
                continue
            prompts.append(
                PolicyPrompt(
                    prompt_id=item.prompt_id,
                    domain=one.name,
                    conversation=tuple(asked(item, one)),
                    token_ids=(),
                    columns={"item_id": item.item_id},
                )
            )
            for model, side in sides:
                side.append(Completion((), (), text=talk(item, found[model]), ended=found[model].ended))
    return Sampled(tuple(prompts), tuple(policy), tuple(start), tuple(0.0 for _ in prompts), opening)


def talk(item: SetItem, answer: SetAnswer) -> str:
    """Return the model's answer; with further questions between its answers where there are any."""
    parts = [answer.texts[0]]
    for question, text in zip(item.further, answer.texts[1:], strict=True):
        parts += [f"[The user then asks:]\n{question}", f"[The assistant answers:]\n{text}"]
    return "\n\n".join(parts)
