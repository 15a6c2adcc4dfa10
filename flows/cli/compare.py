"""`rlhf compare`: certificates side by side on the terminal, and as a page with a plot."""

import argparse
from pathlib import Path

from rich.console import Console

from containers.document.html import page_html
from flows.cli.options import Command
from flows.terminal import print_table
from tasks.certificates.comparison import compare_certificates
from tasks.certificates.files import CertificateError, read_certificates
from tasks.certificates.page import comparison_note, comparison_page, comparison_table

_EXIT_FAILED = 1


def _compare(parsed: argparse.Namespace) -> int:
    """Print the table and write the page. If a certificate cannot be read, name it and return 1."""
    console, page = Console(highlight=False), parsed.page
    try:
        table = compare_certificates(read_certificates(parsed.certificates))
    except CertificateError as error:
        console.print(str(error), markup=False)
        return _EXIT_FAILED
    print_table(console, comparison_table(table), lines=True)
    console.print(comparison_note(table), markup=False)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(page_html(comparison_page(table)), encoding="utf-8")
    except OSError as error:
        console.print(f"The page could not be written: {error}. Name another place with --page.", markup=False)
        return _EXIT_FAILED
    console.print(f"Page       {page.absolute()}", markup=False)
    return 0


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "certificates",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="output folders of runs, or certificate.json files; the others are compared with the first",
    )
    parser.add_argument(
        "--page",
        type=Path,
        default=Path("outputs/comparison.html"),
        metavar="FILE",
        help="where the page with the plot goes (default: %(default)s)",
    )


COMPARE = Command(_add_options, _compare)
