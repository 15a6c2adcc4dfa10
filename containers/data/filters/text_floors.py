"""The error for too few prompts or demonstrations left: the funnel, and the setting that dropped the most."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.data.funnel import FunnelCounter, funnel_table
from containers.harness.errors import BadDataError


class Floor(NamedTuple):
    """How many rows are left for a purpose, how many are wanted, and the key that says so."""

    purpose: str
    num_left: int
    least: int
    key: str


def check_text_floors(
    config: FilterPromptsConfig | FilterDemonstrationsConfig,
    floors: Sequence[Floor],
    *,
    counter: FunnelCounter,
    languages: str,
    share: str,
    advice: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse to go on with too few rows, which would show only after all training.

    Args:
        languages: the values seen in the language column, as text.
        share: the key of the share that is held out.
        advice: what to do about reasons that other stages do not have.

    Raises:
        BadDataError: with the funnel as a table, and the settings to look at.
    """
    short = [
        f"{floor.num_left:,} {floor.purpose} ({config.stage}.{floor.key}: {floor.least:,})"
        for floor in floors
        if floor.num_left < floor.least
    ]
    if not short:
        return
    tally = counter.total
    if 2 * tally.num_dropped < tally.rows_read:
        text = f"Raise {config.stage}.{share} (now {getattr(config, share):g}), or bring more data."
    else:
        reason = max(tally.steps, key=lambda step: step.dropped).reason
        known = {**_advice(config, languages=languages), **advice}
        text = f"`{reason}` dropped the most. {known.get(reason, 'See the examples in dropped.jsonl.')}"
    raise BadDataError(f"Too few rows are left: {' and '.join(short)}.\n\n{funnel_table(tally)}\n\n{text}")


def _advice(config: FilterPromptsConfig | FilterDemonstrationsConfig, *, languages: str) -> dict[str, str]:
    wanted, stage = ", ".join(config.languages), config.stage
    return {
        "language_column": f"`language` holds: {languages}. {stage}.languages names: {wanted}.",
        "code_rows": f"{stage}.code_rows is `drop`; `keep` judges code rows by the prose of their prompt.",
        "detected_language": f"The texts are not in {wanted}. Set {stage}.languages to what they are.",
        "over_long_characters": f"{stage}.max_characters is {config.max_characters:,}; raise it to keep them.",
    }
