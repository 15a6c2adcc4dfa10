"""`rlhf demo-data`: write the synthetic preferences of the demo, or sums with known answers."""

import argparse
from pathlib import Path

from containers.contracts.names import DEMO_DATA_FOLDER
from flows.cli.options import Command
from flows.demo.rows import write_demo_data
from flows.demo.sums import write_sums
from tasks.config.errors import ConfigError

_SUMS_FOLDER = "outputs/sums/data"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help=f"where the files go (default: {DEMO_DATA_FOLDER}, of sums {_SUMS_FOLDER})",
    )
    parser.add_argument(
        "--sums", action="store_true", help="write sums with known answers, for configs/runs/grpo-sums.yaml, instead"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="which data (default: %(default)s)")
    parser.add_argument(
        "--flip-labels",
        action="store_true",
        help="invert every label, to see that the run notices (labelled_pairs stay right)",
    )

    parser.add_argument(
        "--plant",
        action="store_true",
        help="teach the reward model to love a word that says nothing, to see that a judge ends the policy's training",
    )


def _run(parsed: argparse.Namespace) -> int:
    folder = parsed.folder or Path(_SUMS_FOLDER if parsed.sums else DEMO_DATA_FOLDER)
    for name in ("flip_labels", "plant"):
        if parsed.sums and getattr(parsed, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is about preferences, and --sums writes none. Leave one out."
            )
    try:
        written = _written(folder, parsed)
    except OSError as error:
        raise ConfigError(
            f"--folder {folder}: {error.filename or folder} cannot be written "
            f"({error.strerror or error}). Name a folder that you can create and write."
        ) from error
    for path in written:
        print(path)
    return 0


def _written(folder: Path, parsed: argparse.Namespace) -> list[Path]:
    if parsed.sums:
        return write_sums(folder, seed=parsed.seed)
    made = write_demo_data(folder, seed=parsed.seed, flip_labels=parsed.flip_labels, plant=parsed.plant)
    return [made.train, made.validation, made.labelled_pairs]


DEMO_DATA = Command(_add_options, _run)
