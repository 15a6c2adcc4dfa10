"""Judges that no stage reaches while a policy trains, people or an address: pairs are left, verdicts read later."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from containers.contracts.digests import write_atomically
from containers.contracts.evidence import AskedPairs
from containers.contracts.names import ASKED_FILE, ASKED_FOLDER, SAMPLED_FILE, VERDICTS_FILE
from containers.distributed.ranks import is_first_rank
from containers.harness.context import StageContext
from containers.harness.errors import JudgeAwaitedError
from containers.judges.base import Pair, StartedJudge, Verdict

_KEY_LENGTH = 32


class AskedElsewhere(StartedJudge):
    """Leaves pairs in the stage's work folder, where the run finds them once the stage has ended.

    Args:
        name: of the judge in the configuration.
        text: who judges, for people.
        read: reads the file of verdicts into a judge of the pairs that were left.
    """

    is_elsewhere = True

    def __init__(self, context: StageContext, *, name: str, text: str, read: Callable[[Path], StartedJudge]) -> None:
        self._folder = context.work / ASKED_FOLDER
        self._name = name
        self._text = text
        self._read = read

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return what it said of each pair; equal texts are ties, and are not shown to it.

        Raises:
            JudgeAwaitedError: it has not judged these pairs yet; they are left for it.
        """
        if all(pair.is_same_text for pair in pairs):
            return [Verdict(0.5)] * len(pairs)
        place = self._folder / _key(self._name, pairs)
        if not (place / VERDICTS_FILE).is_file():
            if is_first_rank():
                self._leave(place, pairs)
            raise JudgeAwaitedError(f"{len(pairs):,} pairs wait for judge {self._name}.")
        found = self._read(place / VERDICTS_FILE).verdicts(pairs)
        return [Verdict(0.5) if pair.is_same_text else said for pair, said in zip(pairs, found, strict=True)]

    def shown(self) -> str:
        """Return who judges."""
        return self._text

    def _leave(self, place: Path, pairs: Sequence[Pair]) -> None:
        """Write the pairs; what was left before and never judged is gone: no training comes back to it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for other in self._folder.glob("*"):
            if not (other / VERDICTS_FILE).is_file():
                shutil.rmtree(other)
        place.mkdir(parents=True)
        rows = [
            {
                "prompt": [{"role": turn["role"], "content": turn["content"]} for turn in pair.policy.conversation],
                "policy": pair.policy.text,
                "reference": pair.reference.text,
            }
            for pair in pairs
        ]
        pq.write_table(pa.Table.from_pylist(rows), place / SAMPLED_FILE)
        # The last file: without it there is no question.
        asked = AskedPairs(judge=self._name, num_pairs=len(pairs))
        write_atomically(place / ASKED_FILE, asked.model_dump_json())


def _key(name: str, pairs: Sequence[Pair]) -> str:
    texts = [
        [[dict(turn) for turn in pair.policy.conversation], pair.policy.text, pair.reference.text] for pair in pairs
    ]
    return hashlib.sha256(json.dumps([name, texts]).encode()).hexdigest()[:_KEY_LENGTH]
