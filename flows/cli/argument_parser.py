"""The parser of the command line: it reports each mistake in a sentence, with a near match and a working example."""

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from containers.near_words import nearest_word

_NOT_A_CHOICE = re.compile(r"argument (?P<name>\S+): invalid choice: '(?P<word>.*)' \(choose from .*\)", re.DOTALL)
_MISSING = "the following arguments are required: "
_WANTS_VALUE = re.compile(r"argument (?P<name>\S+): expected (one argument|at least one argument)")
_WRONG_TYPE = re.compile(r"argument (?P<name>\S+): invalid (?P<kind>\w+) value: '(?P<value>.*)'", re.DOTALL)
_NUMBERS = {"int": "a whole number", "float": "a number"}


class ArgumentParser(argparse.ArgumentParser):
    """argparse with messages like those of a configuration; `example` is a command line that works."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._example = example
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse; a subcommand itself reports its unknown options, since it knows its own."""
        self._words = list(args or ())
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._end(self._unknown(unknown))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what would be right, and exit with 2."""
        self._end(self._explained(message))

    def _end(self, text: str) -> NoReturn:
        lines = [f"{self.prog}: {text}"]
        if self._example:
            lines.append(f"Example: {self._example}")
        lines.append(f"All options: {self.prog} --help")
        self.exit(2, "\n".join(lines) + "\n")

    def _explained(self, message: str) -> str:
        if message.startswith(_MISSING):
            return self._missing(message.removeprefix(_MISSING).split(", "))
        if found := _NOT_A_CHOICE.fullmatch(message):
            return self._no_choice(found["name"], found["word"])
        if found := _WANTS_VALUE.fullmatch(message):
            return f"{found['name']} needs a value after it{_help_text(self._action(found['name']))}"
        if found := _WRONG_TYPE.fullmatch(message):
            wanted = _NUMBERS.get(found["kind"], "another value")
            return f"{found['name']}: `{found['value']}` found, wanted {wanted}."
        return message

    def _unknown(self, words: Sequence[str]) -> str:
        options = [option for action in self._actions for option in action.option_strings]
        told = []
        for before, word in zip(("", *words), words, strict=False):
            if word.startswith("-"):
                meant = nearest_word(word.partition("=")[0], options)
                told.append(f"{word}: unknown option.{f' Did you mean {meant}?' if meant else ''}")
            elif not before.startswith("-"):  # else it is that option's value
                told.append(f"`{word}` is one word too many.")
        return " ".join(told)

    def _missing(self, names: Iterable[str]) -> str:
        """Name what is missing, and the typed options that do not exist."""
        known = {option for action in self._actions for option in action.option_strings}
        odd = [word for word in self._words if re.match(r"--\w", word) and word.partition("=")[0] not in known]
        told = [f"{name} is missing{_help_text(self._action(name))}" for name in names]
        return " ".join([*told, *([self._unknown(odd)] if odd else [])])

    def _no_choice(self, name: str, word: str) -> str:
        action = self._action(name)
        known = [str(choice) for choice in (action.choices or ())] if action else []
        meant = nearest_word(word, known)
        hint = f" Did you mean `{meant}`?" if meant else ""
        if isinstance(action, argparse._SubParsersAction):
            return f"there is no command `{word}`.{hint} The commands are {_listed(known)}."
        return f"{name}: `{word}` is not one of {_listed(known)}.{hint}"

    def _action(self, name: str) -> argparse.Action | None:
        """The option or argument that argparse names so in a message."""
        names = name.split("/")
        for action in self._actions:
            called = (*action.option_strings, action.dest, str(action.metavar or ""))
            if any(word in called for word in names):
                return action
        return None


def _help_text(action: argparse.Action | None) -> str:
    if action is None:
        return "."
    if action.choices:
        return f": one of {_listed([str(choice) for choice in action.choices])}."
    return f": {action.help % {'default': action.default}}." if action.help else "."


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
