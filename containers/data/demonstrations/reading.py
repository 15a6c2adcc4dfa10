"""Reads the inputs of filter_demonstrations: every row of every file, each with its place, malformed ones by reason."""

from dataclasses import dataclass
from typing import TypeAlias

from containers.data.demonstrations.forms import FORMS
from containers.data.demonstrations.rows import DemonstrationRow
from containers.data.row_kinds import RowKind
from containers.data.sources import Placed, Source


@dataclass(slots=True)
class PlacedDemonstration(Placed):
    """A conversation with its place."""

    row: DemonstrationRow


DemonstrationSource: TypeAlias = Source[PlacedDemonstration]
DEMONSTRATIONS = RowKind("demonstrations", "demonstrations", FORMS, PlacedDemonstration)
