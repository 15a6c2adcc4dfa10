"""Measure what more rows and longer rows cost. Figures: growth.md.

    python -m benchmarks.growth [data|length] [--rows N …] [--prompts N …] [--rounds N] [--write]

- data: `rlhf run --until evaluate_reward_model`, one epoch, on more and more rows like the demo's; seconds and memory
  by stage, and the power of the number of rows with which a stage's seconds grow
- length: an optimizer step on 8 pairs with longer and longer prompts; TRL at its best and packed pairs alternate
"""

import argparse
import sys
from pathlib import Path

from benchmarks import growth_data, growth_length
from benchmarks.provenance import commit
from benchmarks.speed_table import write_part

_PAGE = Path(__file__).with_suffix(".md")
_TITLE = "What more rows and longer rows cost"


def main() -> int:
    """Measure and print the chosen parts; with --write, write them into their parts of the page, with a plot each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", choices=["data", "length"], help="one of the two; both unless given")
    parser.add_argument("--rows", type=int, nargs="+", default=growth_data.ROWS, help="training rows of the runs")
    parser.add_argument("--prompts", type=int, nargs="+", default=growth_length.PROMPTS, help="tokens of a prompt")
    parser.add_argument("--answers", type=int, default=300, help="tokens of an answer; 300 unless given")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of a length; 3 unless given")
    parser.add_argument("--write", action="store_true", help=f"write into {_PAGE.name}; without it, print")
    given, measured = parser.parse_args(), commit()
    plots = {question: _PAGE.with_name(f"growth_{question}.svg") if given.write else None for question in _HEADINGS}
    if given.question != "length":
        _show("data", growth_data.measured(given.rows, plot=plots["data"]), write=given.write, measured=measured)
    if given.question != "data":
        text = growth_length.measured(
            given.prompts, answer_tokens=given.answers, rounds=given.rounds, plot=plots["length"]
        )
        _show("length", text, write=given.write, measured=measured)
    return 0


_HEADINGS = {"data": "More rows", "length": "Longer prompts"}


def _show(question: str, text: str, *, write: bool, measured: str) -> None:
    heading = _HEADINGS[question]
    print(f"{heading}\n\n{text}\n")
    if write:
        text = f"{text}\n\n![{heading}](growth_{question}.svg)"
        write_part(_PAGE, text, module="benchmarks.growth", title=_TITLE, heading=heading, measured=measured)


if __name__ == "__main__":
    sys.exit(main())
