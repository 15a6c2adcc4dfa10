"""`rlhf demo-data`: write the synthetic preferences of the demo."""

import argparse
from pathlib import Path

from containers.contracts.names import DEMO_DATA_FOLDER
from flows.cli.options import Command
from flows.demo.rows import write_demo_data
from tasks.config.errors import ConfigError


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(DEMO_DATA_FOLDER),
        metavar="FOLDER",
        help="where the three files go (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="which data (default: %(default)s)")
    parser.add_argument(
        "--flip-labels",
        action="store_true",
        help="invert every label, to see that the run notices (labelled_pairs stay right)",
    )


def _run(parsed: argparse.Namespace) -> int:
    try:
        written = write_demo_data(parsed.folder, seed=parsed.seed, flip_labels=parsed.flip_labels)
    except OSError as error:
        raise ConfigError(
            f"--folder {parsed.folder}: {error.filename or parsed.folder} cannot be written "
            f"({error.strerror or error}). Name a folder that you can create and write."
        ) from error
    for path in (written.train, written.validation, written.labelled_pairs):
        print(path)
    return 0


DEMO_DATA = Command(_add_options, _run)
