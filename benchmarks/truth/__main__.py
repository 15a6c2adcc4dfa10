"""What figures and decisions say where the truth is known; `python -m benchmarks.truth --write` writes the page.

The page is docs/proofs/statistics.md. Each section is a program of its own with the same options.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.provenance import commit, when_and_where
from benchmarks.truth import calibration, choice, contests, coverage, length, quotation

_PAGE = Path(__file__).resolve().parents[2] / "docs/proofs/statistics.md"


def sections(*, scale: float, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield title, what was simulated, and tables.

    Args:
        scale: 1 for the page; less for a quick look.
    """

    def draws(full: int) -> int:
        return max(2, round(scale * full))

    text, short = coverage.coverage_text(draws=draws(2000), seed=seed)
    yield (
        "How often intervals hold the truth",
        f"At a level of 95 %; less than 93 % is a fault, except for means of few or skewed values. Faults: {short}.",
        text,
    )
    yield (
        "A checkpoint chosen on the pairs that certify it",
        "Ten equally good checkpoints with a true accuracy of 70 %; the one with the lowest log loss is chosen.",
        choice.choice_table(draws=draws(2000), seed=seed),
    )
    yield (
        "Champion and challenger",
        "Shares of challengers. Before: a suite stopped a challenger by its point estimate. Would show: with 80 %.",
        contests.contests_table(draws=draws(400), seed=seed),
    )
    yield (
        "Length",
        "Reward models of known bias, in standard deviations of the scores per doubling of the length.",
        length.markdown(length.table_rows(runs=draws(100), seed=seed)),
    )
    yield (
        "Calibration",
        "Models of known calibration error; the plug-in error is what was shown before.",
        calibration.calibration_table(calibration.calibration_cells(seed, draws(200))),
    )
    yield (
        "Labels and the scores beside them",
        "Shares of data sets that are refused, before by the point estimate, now by the interval.",
        calibration.polarity_table(calibration.polarity_cells(seed, draws(2000))),
    )
    yield (
        "Quotations and templates",
        "Shares of draws, through the filter.",
        "\n".join(quotation.table(quotation.rows(seed=seed, draws=draws(50)))),
    )


def main() -> int:
    """Print the page section by section, and write it where wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the page's draws (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"write {_PAGE.name}")
    options = parser.parse_args()
    measured, command = commit(), f"python -m benchmarks.truth --scale {options.scale:g} --seed {options.seed}"
    parts = [f"# Figures where the truth is known\n\n    {command} --write"]
    for title, what, text in sections(scale=options.scale, seed=options.seed):
        parts.append(f"## {title}\n\n{what}\n\n{text}")
        print(f"{parts[-1]}\n", flush=True)
    parts.insert(1, f"{when_and_where(measured)}. Simulated; independent prompts unless said.")
    if options.write:
        _PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
