"""The form's field of rewards: one line each, as an item of `train_policy.rewards`."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from flows.forms.folders import texts_of
from flows.forms.pipeline import JsonSchema, SetsKeys, bounded_text
from tasks.config.errors import InvalidConfigError, Mistake
from tasks.config.yaml_reader import read_yaml_value

_KEY = "train_policy.rewards"


class SetsRewards(SetsKeys):
    """Annotation of a field, a list of texts, whose lines replace the rewards of the run.

    Example: `math` and `{type: length, target: [20, 200], weight: 0.1}`.
    """

    holds_yaml = True

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Schema with the text that helps."""
        text = (
            "What the policy is rewarded for, one line each: a type such as `math`, or `{type: length, target: "
            "[20, 200], weight: 0.1}`; docs/training.md has them all. Their weighted sum counts. A `python` reward is "
            f"named in the run config. Empty: as in the run config (`{_KEY}`)."
        )
        return bounded_text(handler(core_schema) | {"description": text})

    def overrides(self, value: object) -> list[str]:
        """`train_policy.rewards=[…]`; none if every line is empty.

        Raises:
            InvalidConfigError: a line is neither a type nor `{type: …}`, or no YAML.
        """
        terms = [_term(line, number) for number, line in enumerate(texts_of(value, field="rewards"), 1) if line]
        return [f"{_KEY}={json.dumps(terms, ensure_ascii=False)}"] if terms else []


def _term(line: str, number: int) -> Mapping[str, Any]:
    found = read_yaml_value(line, shown=f"rewards, line {number}")
    if isinstance(found, str):
        return {"type": found}
    if isinstance(found, dict):
        return found
    text = f"`{line[:200]}` found in line {number}, wanted a type such as `math`, or `{{type: math, weight: 0.5}}`."
    raise InvalidConfigError("The form", [Mistake("rewards", text)])
