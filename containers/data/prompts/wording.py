"""The words in which the policy gets a prompt."""

from containers.contracts.configs.filter_prompts import PROMPT_PLACE, FilterPromptsConfig
from containers.data.prompts.rows import PromptRow


def as_asked(row: PromptRow, config: FilterPromptsConfig) -> PromptRow:
    """Return the row as the policy gets it: with the system turn, and its last turn put into the template."""
    *before, last = row.prompt
    if config.system_prompt is not None and row.prompt[0]["role"] != "system":
        before = [{"role": "system", "content": config.system_prompt}, *before]
    content = config.prompt_template.replace(PROMPT_PLACE, last["content"])
    return row._replace(prompt=(*before, {**last, "content": content}))
