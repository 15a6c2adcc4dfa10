"""The turns in which the policy gets a prompt, and a model the conversations that it is fine-tuned on."""

from collections.abc import Sequence

from containers.contracts.configs.parts.row_filters import PROMPT_PLACE, TextFilters
from containers.data.rows import Turn


def as_asked(prompt: Sequence[Turn], config: TextFilters) -> tuple[Turn, ...]:
    """Return a prompt with the system turn, and its last turn put into the template."""
    *before, last = _with_system(prompt, config)
    return (*before, _in_template(last, config))


def as_told(turns: Sequence[Turn], config: TextFilters) -> tuple[Turn, ...]:
    """Return turns before an answer with the system turn, and each user turn put into the template."""
    return tuple(_in_template(turn, config) if turn["role"] == "user" else turn for turn in _with_system(turns, config))


def _with_system(turns: Sequence[Turn], config: TextFilters) -> Sequence[Turn]:
    if config.system_prompt is None or turns[0]["role"] == "system":
        return turns
    return [{"role": "system", "content": config.system_prompt}, *turns]


def _in_template(turn: Turn, config: TextFilters) -> Turn:
    return {**turn, "content": config.prompt_template.replace(PROMPT_PLACE, turn["content"])}
