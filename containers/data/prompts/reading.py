"""Reads the inputs of filter_prompts: every row of every file, each with its place, malformed ones by reason."""

from dataclasses import dataclass
from typing import TypeAlias

from containers.data.prompts.forms import FORMS
from containers.data.prompts.rows import PromptRow
from containers.data.row_kinds import RowKind
from containers.data.sources import Placed, Source


@dataclass(slots=True)
class PlacedPrompt(Placed):
    """A prompt with its place."""

    row: PromptRow


PromptSource: TypeAlias = Source[PlacedPrompt]
PROMPTS = RowKind("prompts", "prompts", FORMS, PlacedPrompt)
