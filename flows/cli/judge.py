"""`rlhf judge`: judge pairs of answers of a run blind; each choice is kept at once, so one may stop at any time."""

import argparse
import re
import sys
from collections.abc import Callable

from flows.cli.options import Command, add_config_options, load_run_with_store
from flows.terminal import printable
from tasks.config.loading import LoadedConfig
from tasks.judges.people import NAME, PairChoice, PeopleChoices, ShownPair, people_of_run
from tasks.judges.verdicts import VERDICTS_FOLDER

_EXIT_REFUSED = 1
_EXIT_COMMAND_LINE = 2
_KEYS: dict[str, PairChoice] = {"a": "first", "b": "second", "t": "tie"}
_HELP = "a: A is better   b: B is better   t: a tie   s: later   q: stop; what you chose is kept"


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument(
        "--by", default="", metavar="NAME", help="who judges; kept with each choice (example: --by ada)"
    )
    parser.add_argument("--judge", default="", metavar="NAME", help="which judge of type people, if there are several")
    parser.add_argument("--show", action="store_true", help="show who has judged how many pairs")
    parser.add_argument("--delete", default="", metavar="NAME", help="delete everything that this person chose")


def _run(parsed: argparse.Namespace) -> int:
    loaded = load_run_with_store(parsed)
    found = _choices(loaded, parsed.judge)
    if isinstance(found, str):
        return _refuse(found)
    for option, name in (("--by", parsed.by), ("--delete", parsed.delete)):
        if name and not re.fullmatch(NAME, name):
            text = f"{option} {name!r}: use up to 64 letters, digits, `.`, `_` or `-`."
            return _refuse(text, exit_code=_EXIT_COMMAND_LINE)
    if parsed.delete:
        return _delete(found, parsed.delete)
    if parsed.show or not parsed.by:
        sys.stdout.write(f"{found.state_text()}.\n")
        if not parsed.show:
            return _refuse("Say who judges: --by NAME.", exit_code=_EXIT_COMMAND_LINE)
        return 0
    return judge_pairs(found, parsed.by, ask=input)


JUDGE = Command(_add_options, _run)


def judge_pairs(choices: PeopleChoices, person: str, *, ask: Callable[[str], str]) -> int:
    """Show the pairs that the person has yet to judge, one by one. Returns 0.

    Args:
        ask: shows a text and returns a line.
    """
    left = choices.left(person)
    total = len(choices.question.places)
    sys.stdout.write(f"{choices.state_text()}.\n{_HELP}\n")
    for number, place in enumerate(left, start=total - len(left) + 1):
        pair = choices.shown(person, place)
        sys.stdout.write(_text(pair, number=number, total=total))
        key = _key(ask)
        if key == "q":
            break
        if key in _KEYS:
            choices.keep(person, pair, _KEYS[key])
    sys.stdout.write(f"\n{choices.state_text()}.\n")
    if choices.is_enough:
        sys.stdout.write(f"That is enough. Go on with: {choices.question.command}\n")
    return 0


def _key(ask: Callable[[str], str]) -> str:
    while True:
        try:
            key = ask("a, b, t, s or q: ").strip().lower()
        except EOFError:
            return "q"
        if key in (*_KEYS, "s", "q"):
            return key
        sys.stdout.write(f"{_HELP}\n")


def _text(pair: ShownPair, *, number: int, total: int) -> str:
    turns = "\n".join(f"{turn.role}: {printable(turn.content)}" for turn in pair.prompt)
    return (
        f"\n── pair {number} of {total} ──\n{turns}\n\n── A ──\n{printable(pair.first)}\n\n── B ──\n"
        f"{printable(pair.second)}\n\n"
    )


def _delete(choices: PeopleChoices, person: str) -> int:
    number = choices.delete(person)
    if not number:
        return _refuse(f"{person} has chosen nothing here. {choices.state_text()}.")
    sys.stdout.write(f"{number:,} choices of {person} were deleted. {choices.state_text()}.\n")
    sys.stdout.write("Reports that were written with them still have the figures; run the run again for new ones.\n")
    return 0


def _choices(loaded: LoadedConfig, judge: str) -> PeopleChoices | str:
    """Return what is to be judged, or why it is not clear what."""
    config = loaded.config
    if not config.people_judges:
        return "No judge of this run is people. Add {type: people} to evaluate_policy.judges."
    found = people_of_run(
        config.store_dir.resolve() / VERDICTS_FOLDER, run_name=config.run.name, output_dir=config.output_dir.resolve()
    )
    newest: dict[str, PeopleChoices] = {}
    for item in found:
        newest.setdefault(item.question.judge, item)
    names = [one.name for one in config.people_judges if one.name in newest and judge in ("", one.name)]
    if not names:
        return f"Run {config.run.name} has no pair to judge yet: it asks once it has written. rlhf run -c {loaded.path}"
    if len(names) > 1:
        return f"Several judges of this run are people: {', '.join(names)}. Choose one: --judge NAME."
    return newest[names[0]]


def _refuse(text: str, *, exit_code: int = _EXIT_REFUSED) -> int:
    sys.stderr.write(f"{text}\n")
    return exit_code
