"""A person's own reader of data, `dataset.reader`: found and looked over here, run only inside the stage."""

import ast

from containers.data.formats.custom_reader import READER_FUNCTION
from tasks.config.sources import RowSource
from tasks.sources.errors import UnusableSourceError
from tasks.sources.local import ResolvedInput, resolve_file

_MAX_BYTES = 1024**2


def find_reader(name: str, source: RowSource) -> ResolvedInput | None:
    """The reader as input of the stage; None where the source names none. It is parsed, never run.

    Args:
        name: of the source in its mixture; empty where it stands alone.

    Raises:
        SourceError: it is not there, is no Python, or has no function of that name.
    """
    if source.reader is None:
        return None
    key = f"dataset.mixture {name}: reader" if name else "dataset.reader"
    found = resolve_file(source.reader, name=f"reader_{name}" if name else "reader", key=key)
    if found.path.is_dir() or found.path.stat().st_size > _MAX_BYTES:
        raise UnusableSourceError(f"{key}: {found.path} is no Python file.", "Name a file that ends in .py.")
    try:
        tree = ast.parse(found.path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UnusableSourceError(f"{key}: {found.path} is no Python: {error}.", "Correct the file.") from error
    if not any(isinstance(item, ast.FunctionDef) and item.name == READER_FUNCTION for item in tree.body):
        raise UnusableSourceError(
            f"{key}: {found.path} has no function {READER_FUNCTION}(path).", "Write one that yields a dict per row."
        )
    return found
