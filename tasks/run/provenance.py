"""Which run made an artifact: a small file beside the logs of the attempt that made it.

Losing it loses a name and a link, never work.
"""

import logging
from pathlib import Path

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.digests import write_atomically
from containers.contracts.names import SPEC_FILE
from containers.contracts.spec import StageSpec
from containers.formatting import markdown_text, moment

logger = logging.getLogger(__name__)

MADE_BY_FILE = "made_by.json"


class Provenance(Frozen):
    """The run that made an artifact."""

    run_name: str = ""
    run_id: str = ""
    flow_run_id: str = Field("", description="In Prefect; empty outside a flow run")
    mlflow_url: str = Field("", description="Page of the stage's run in MLflow, as it was called then")

    def text(self, made_at: str) -> str:
        """`made by run demo (20261121-193201-5a3f0c) on 21 November 2026, 19:33 UTC`."""
        name = f"{self.run_name} ({self.run_id})" if self.run_name else self.run_id
        return f"made by run {name} on {moment(made_at)}" if name else f"made {moment(made_at)}"


def reused_note(maker: Provenance, message: str) -> str:
    """Markdown for the MLflow run of a stage that made nothing new.

    Args:
        message: `maker.text(…)`.
    """
    where = f" Its curves are on [that run's page]({maker.mlflow_url})." if maker.mlflow_url else ""
    return f"↺ **Reused:** {markdown_text(message)}.{where}"


def note_maker(attempt_folder: Path, maker: Provenance) -> None:
    """Write down which run made what the attempt published. A full disk is logged, never raised."""
    try:
        write_atomically(attempt_folder / MADE_BY_FILE, maker.model_dump_json(indent=1))
    except OSError as error:
        logger.warning("%s cannot be written: %s", attempt_folder / MADE_BY_FILE, error)


def find_maker(attempt_folders: Path) -> Provenance:
    """The run that made the artifact of that key last; without a name if only an attempt's spec is left, or nothing.

    Args:
        attempt_folders: the folder that holds `attempt-1`, `attempt-2`, ….
    """
    folders = sorted(attempt_folders.glob("attempt-*"), key=_number, reverse=True)
    records: tuple[tuple[str, type[Provenance | StageSpec]], ...] = ((MADE_BY_FILE, Provenance), (SPEC_FILE, StageSpec))
    for name, kind in records:
        for folder in folders:
            if found := kind.read_if_valid(folder / name):
                return found if isinstance(found, Provenance) else Provenance(run_id=found.run_id)
    return Provenance()


def _number(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
