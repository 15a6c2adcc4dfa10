"""The user's own reader: a Python file with one function, `read_rows(path)`, that yields rows in a known schema.

The file is an input of the stage, so its content counts in the stage's key. It runs inside the stage, with the
stage's rights only: in a container, without network and credentials.
"""

import importlib.util
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from containers.data.formats.files import Line, line_of
from containers.harness.errors import BadDataError

READER_FUNCTION = "read_rows"


def read_lines_with(reader: Path, data: Path, *, name: str, key: str = "dataset.reader") -> Iterator[Line]:
    """Yield one item per value of the user's function; a value that is no object has a reason.

    Args:
        data: file or folder, as the stage sees it.
        name: how messages name the data.
        key: of the reader in the configuration.

    Raises:
        BadDataError: the reader cannot be loaded, or it raises; the message has its line and its error.
    """
    read = _load(reader, key=key)
    number = 0
    try:
        for number, value in enumerate(read(data), start=1):
            yield line_of(number, value)
    except Exception as error:  # whatever a foreign function raises
        raise BadDataError(
            f"{name}: the reader of {key} failed after row {number:,}: {_said(error, reader)}. Correct "
            f"{READER_FUNCTION} in it."
        ) from error


def _load(reader: Path, *, key: str) -> Callable[[Path], Iterator[Any]]:
    loader = SourceFileLoader("rlhf_own_reader", str(reader))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    try:
        loader.exec_module(module)
        read: Callable[[Path], Iterator[Any]] = getattr(module, READER_FUNCTION)
    except AttributeError as error:
        raise BadDataError(
            f"{key} holds no function {READER_FUNCTION}(path). Write one that yields a dict per row."
        ) from error
    except Exception as error:  # whatever a foreign module raises on import
        raise BadDataError(f"{key} cannot be loaded: {_said(error, reader)}. Correct the file.") from error
    return read


def _said(error: Exception, reader: Path) -> str:
    """Type and text of the error, and the line of the reader that raised it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(reader)]
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}".rstrip(".")
