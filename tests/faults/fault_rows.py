"""What a fault test saw, as a row of docs/proofs/faults.md, which is made from rows and nothing else."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROWS_FOLDER = Path(os.environ.get("RLHF_FAULT_ROWS", Path(__file__).resolve().parents[2] / "outputs" / "faults"))


@dataclass(frozen=True)
class FaultRow:
    """One fault, put into real parts, and how the pipeline took it.

    Attributes:
        area: heading in the table: crashes, containers, disk and memory, artifacts, services, training, people.
        order: place in the table.
        fault: what was done, to what.
        parts: the real parts it was done to.
        seen: what a person reads, or how it went on; figures come from the test.
        lost: what was lost; the aim is nothing.
        repeated: what was done twice; the aim is at most the steps since the last checkpoint.
        recovery_s: seconds from the start of recovery to the stage's or run's end, or to a clear refusal.
    """

    test: str
    area: str
    fault: str
    parts: str
    seen: str
    lost: str
    repeated: str
    recovery_s: float
    outcome: str = "passed"


@dataclass
class Fault:
    """Collects what a test sees. A test that ends without `recovered` leaves a row that says FAILED."""

    test: str
    area: str = ""
    fault: str = ""
    parts: str = ""
    _since: float | None = None
    _row: FaultRow | None = field(default=None, repr=False)

    def describe(self, area: str, fault: str, *, parts: str) -> None:
        """Say at the start of the test what is done to what."""
        self.area, self.fault, self.parts = area, fault, parts

    def recovery_starts(self) -> None:
        """Call when somebody starts to recover: types the command again, or nothing at all has to be done."""
        self._since = time.monotonic()

    def recovered(
        self, *, seen: str, lost: str = "nothing", repeated: str = "nothing", recovery_s: float | None = None
    ) -> None:
        """Call after every assertion held; every figure in the texts was measured by the test.

        Args:
            recovery_s: where the fault was put in more than once, the longest recovery; else the test's own clock.
        """
        if recovery_s is None:
            recovery_s = 0.0 if self._since is None else time.monotonic() - self._since
        self._row = FaultRow(
            self.test, self.area, self.fault, self.parts, seen, lost, repeated, recovery_s=round(recovery_s, 1)
        )

    def write(self, *, passed: bool, skipped: str = "") -> None:
        """Keep the row."""
        row = self._row if passed and self._row else None
        if row is None:
            outcome = f"skipped: {skipped}" if skipped else "FAILED"
            row = FaultRow(
                self.test, self.area or "undescribed", self.fault or self.test, self.parts, "", "", "", 0.0, outcome
            )
        ROWS_FOLDER.mkdir(parents=True, exist_ok=True)
        (ROWS_FOLDER / f"{self.test}.json").write_text(json.dumps(asdict(row), indent=1), encoding="utf-8")


def read_rows(folder: Path = ROWS_FOLDER) -> list[FaultRow]:
    """Every row that tests left."""
    return [FaultRow(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
