"""Count training prompts that are like a validation prompt, or like one another. Figures: docs/data.md.

python -m benchmarks.similar_prompts --train TRAIN.jsonl.gz [--validation VALIDATION.jsonl.gz] [--show 20]
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from containers.data.filters.prompt_words import Prompts, text_of_turns
from containers.data.filters.similar_prompts import PromptGroups, prompts_for_split, similar_prompts
from containers.data.funnel import shortened
from containers.data.reader import read_rows
from containers.data.rows import PreferenceRow, Turn

OVERLAPS = (0.5, 0.7, 0.8, 0.9, 1.0)

ById = dict[str, tuple[Turn, ...]]


def read(paths: list[Path]) -> list[PreferenceRow]:
    """Return the good rows of the files."""
    return [item.row for path in paths for item in read_rows(path) if item.row is not None]


def across(groups: PromptGroups, train: ById, validation: ById) -> list[tuple[str, str]]:
    """Return each training prompt that is like a validation prompt but not equal, with the first such prompt."""
    held_out = {groups.of(prompt_id): prompt_id for prompt_id in sorted(validation, reverse=True)}
    return [
        (prompt_id, held_out[groups.of(prompt_id)])
        for prompt_id in train
        if prompt_id not in validation and groups.of(prompt_id) in held_out
    ]


def table(train: ById, validation: ById) -> Iterator[str]:
    """Yield a table of what each overlap finds, and how fast."""
    yield "| overlap | training prompts like a validation one | prompts like another | groups | largest | prompts/s |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    for overlap in OVERLAPS:
        started = time.process_time()
        groups = similar_prompts(Prompts(train | validation), overlap=overlap)
        speed = len(train | validation) / (time.process_time() - started)
        sizes = sorted(map(len, groups.members().values()))
        counts = (len(across(groups, train, validation)), sum(sizes), len(sizes), max(sizes, default=0))
        yield f"| {overlap} | {' | '.join(map(str, counts))} | {speed:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--validation", type=Path, nargs="*", default=[])
    parser.add_argument("--show", type=int, default=0, help="prompts to print that 0.9 finds across the two sides")
    given = parser.parse_args()
    train, validation = (
        {row.prompt_id: row.pair.prompt for row in read(paths)} for paths in (given.train, given.validation)
    )
    equal = len(train.keys() & validation)
    print(f"{len(train):,} training prompts, {len(validation):,} validation prompts, {equal:,} in both")
    print("\n".join(table(train, validation)))
    prompts = Prompts(train | validation)
    for use, groups in (
        ("to drop rows", similar_prompts(prompts, overlap=0.9)),
        ("for a split", prompts_for_split(prompts, overlap=0.9)),
    ):
        sizes = sorted(Counter(map(len, groups.members().values())).items())
        print(f"Groups {use}: {', '.join(f'{count} of {size}' for size, count in sizes) or 'none'} prompts")
    groups = similar_prompts(prompts, overlap=0.9)
    for prompt_id, like in across(groups, train, validation)[: given.show]:
        print(
            f"- {shortened(text_of_turns(train[prompt_id]), 300)}\n  {shortened(text_of_turns(validation[like]), 300)}"
        )


if __name__ == "__main__":
    main()
