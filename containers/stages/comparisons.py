"""Pairs as NeMo-Aligner reads them: JSON lines of one `text`, the line of the better response before the other's."""

import json
from collections.abc import Iterable
from pathlib import Path

from containers.stages.pair_rows import PreferenceRow
from containers.stages.transcripts import comparison_text


def write_comparisons(path: Path, rows: Iterable[PreferenceRow]) -> int:
    """Write two lines for each pair, in order.

    Returns:
        Pairs left out, since they could not be read back: with a system turn, or with the mark of a turn in a text.
    """
    left_out = 0
    with open(path, "w", encoding="utf-8") as stream:
        for row in rows:
            texts = [comparison_text(row.pair.prompt, answer) for answer in (row.pair.chosen, row.pair.rejected)]
            if None in texts:
                left_out += 1
            else:
                stream.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    return left_out
