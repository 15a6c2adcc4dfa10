"""What MLflow could not be told yet: a file of operations beside the run's output, in the order in which they came."""

import logging
from pathlib import Path

from containers.digests import write_atomically
from tasks.mlflow_operations import OPERATION, CreateRun, RunOperation

logger = logging.getLogger(__name__)


class Spool:
    """A list of operations that outlives the process; empty means that there is no file.

    Operations that an earlier process left are taken over. Failing to write (a full disk) is logged, never raised.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._operations = self._read()

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def operations(self) -> tuple[CreateRun | RunOperation, ...]:
        """What waits, oldest first."""
        return tuple(self._operations)

    def append(self, operation: CreateRun | RunOperation) -> None:
        """Keep one more."""
        self._operations.append(operation)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as stream:
                stream.write(operation.model_dump_json() + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.path, error)

    def replace(self, operations: list[CreateRun | RunOperation]) -> None:
        """Keep these only."""
        self._operations = list(operations)
        try:
            if operations:
                write_atomically(self.path, "".join(f"{item.model_dump_json()}\n" for item in operations))
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.path, error)

    def _read(self) -> list[CreateRun | RunOperation]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("%s cannot be read: %s", self.path, error)
            return []
        operations = []
        for number, line in enumerate(lines, start=1):
            try:
                operations.append(OPERATION.validate_json(line))
            except ValueError as error:
                logger.warning("%s:%d is no operation and was left out: %s", self.path, number, error)
        return operations
