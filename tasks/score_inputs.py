"""The rows that `rlhf score` is given: looked at before anything is started."""

from pathlib import Path

from containers.contracts.spec import StageInput
from tasks.foreign_files import BEGINNING_BYTES, foreign_file
from tasks.local_sources import data_file_or_folder, data_files
from tasks.resolved import resolve_file
from tasks.source_errors import SourceAccessError, UnusableSourceError

# Files that the stage reads, told by how they begin: parquet and gzip.
_READ_BY_BEGINNING = (b"PAR1", b"\x1f\x8b")
_TABLES_OF_TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def rows_input(path: Path | str) -> StageInput:
    """A file of rows, or a folder of such files, as input `rows`.

    Raises:
        SourceError: it is not there, may not be read, is empty, or is no jsonl, jsonl.gz or parquet file.
    """
    for file in data_files(data_file_or_folder(path, key="FILE")):
        _demand_rows_file(file)
    found = resolve_file(path, name="rows", key="FILE")
    return StageInput(name="rows", path=str(found.path), digest=found.digest, origin=found.origin)


def _demand_rows_file(file: Path) -> None:
    advice = "Write the rows as .jsonl, .jsonl.gz or .parquet."
    if file.name.lower().endswith(_TABLES_OF_TEXT):
        raise UnusableSourceError(f"FILE: {file} is a table of text, which has no lists and no turns.", advice)
    try:
        with open(file, "rb") as stream:
            beginning = stream.read(BEGINNING_BYTES)
    except OSError as error:
        raise SourceAccessError(f"FILE: {file} cannot be read: {error}.", "Change its mode or owner.") from error
    foreign = None if beginning.startswith(_READ_BY_BEGINNING) else foreign_file(beginning)
    if foreign is not None:
        raise UnusableSourceError(f"FILE: {file} is {foreign.kind}.", foreign.advice)
