"""The files and tables that a run's page in MLflow shows; large weights stay where they are, and are named."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from containers.contracts.digests import UnsafeFileError, regular_files
from containers.contracts.names import ADAPTER_FOLDER
from tasks.mlflow_sync.operations import LogFile, LogText, SetTags
from tasks.mlflow_sync.outbox import Outbox
from tasks.mlflow_sync.tables import tables_of

MIB = 1024**2


class RunFiles:
    """Puts files on the pages of runs. No method raises; what cannot be sent now waits in the outbox.

    Args:
        upload_limit_s: time that the upload of one folder may take; what is left then waits.
        largest_file_bytes: larger files are named, not uploaded; adapters always are.
    """

    def __init__(self, outbox: Outbox, *, upload_limit_s: float = 30.0, largest_file_bytes: int = 64 * MIB) -> None:
        self._outbox = outbox
        self._upload_limit_s = upload_limit_s
        self._largest_file_bytes = largest_file_bytes
        self._tables: dict[str, list[str]] = {}

    def log_text(self, run_id: str, text: str, file: str) -> None:
        """Keep a text as an artifact file."""
        self._outbox.do(LogText(run=run_id, text=text, file=file))

    def log_json(self, run_id: str, value: object, file: str) -> None:
        """Keep a value as a JSON file."""
        self.log_text(run_id, json.dumps(value, indent=2, ensure_ascii=False, default=str), file)

    def log_table(self, run_id: str, columns: Sequence[str], rows: Sequence[Sequence[object]], file: str) -> None:
        """Keep rows as a table that the run page shows; `file` ends in .json."""
        self.log_json(run_id, {"columns": list(columns), "data": [list(row) for row in rows]}, file)
        tables = self._tables.setdefault(run_id, [])
        if file not in tables:
            tables.append(file)
        shown = json.dumps([{"path": path, "type": "table"} for path in tables])
        self._outbox.do(SetTags(run=run_id, tags=(("mlflow.loggedArtifacts", shown),)))

    def log_file(self, run_id: str, path: Path, *, folder: str = "") -> None:
        """Upload a file where it exists and is not too large."""
        if _size_bytes(path) <= self._largest_file_bytes and path.is_file() and not path.is_symlink():
            self._outbox.do(LogFile(run=run_id, path=str(path.resolve()), folder=folder))

    def log_artifact_folder(self, run_id: str, folder: Path, *, under: str = "output") -> None:
        """Upload an artifact, and show its tables; `NOT_UPLOADED.txt` names files too large, and where they lie.

        A folder with a symbolic link, FIFO or device in it is not uploaded at all.
        """
        try:
            files = list(regular_files(folder))
        except (UnsafeFileError, OSError) as error:
            self._outbox.refuse(f"{folder} is not uploaded: {error}")
            return
        deadline = time.monotonic() + self._upload_limit_s
        left_out = []
        for path in files:
            relative = path.relative_to(folder)
            size = _size_bytes(path)
            if size > self._largest_file_bytes and ADAPTER_FOLDER not in relative.parts[:-1]:
                left_out.append(f"{size:>16,} bytes  {path.resolve()}")
                continue
            parent = relative.parent.as_posix()
            target = under if parent == "." else f"{under}/{parent}"
            operation = LogFile(run=run_id, path=str(path.resolve()), folder=target)
            self._outbox.do(operation, now=time.monotonic() < deadline)
        if left_out:
            head = f"Larger than {self._largest_file_bytes / MIB:.0f} MiB each, so they stay where they are:"
            self.log_text(run_id, "\n".join((head, *left_out, "")), f"{under}/NOT_UPLOADED.txt")
        for table in tables_of(folder):
            self.log_table(run_id, table.columns, table.rows, f"tables/{table.name}.json")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
