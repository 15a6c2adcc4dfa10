"""`rlhf keys`, and the page docs/configuration.md; both are made from the models of the configuration."""

import argparse
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from containers.near_words import nearest_word
from flows.cli.options import Command
from tasks.config.errors import ConfigError, near_match
from tasks.config.keys import OWN_DEFAULTS, REQUIRED, ConfigKey, ConfigSection, config_sections

_WIDTH = 100
_INDENT = " " * 6

_HEAD = """# Every key of a run

`rlhf keys` prints this page, `rlhf keys train_policy` a section of it, `rlhf keys batch` the keys with that in their
name. It is made from the models of the configuration by `rlhf keys --write docs/configuration.md`: change a description
there, not here.

Write a key below its section in the run's file, or with its section after `--set`, as in
`--set train_policy.optimizer.learning_rate=1e-5`. A key that is left out has its default; an unknown key is refused
with a near match. `[0, 1]` includes its ends, `(0, 1)` does not. `rlhf plan`, and every start of a run, check that the
keys fit each other, the profile and the data (a batch that can be divided, a schedule that fits the steps).
"""
_PROFILE_NOTE = """A run names a file of `configs/gpu_profiles`, or any YAML file with these keys;
`--set gpu_profile.shm_size_gib=4` changes one of them. A file with `ladder` and `without_gpu` names other profiles
instead, as `auto` does: [hardware.md](hardware.md)."""
_NOTES = {
    "gpu_profile": _PROFILE_NOTE,
    "dataset": "The forms of rows that are read: [data.md](data.md).",
    "train_reward_model": "When to use which: [training.md](training.md).",
    "evaluate_reward_model": "The benchmarks and their rules: [suites.md](suites.md).",
    "gates": "How a person decides: [approvals.md](approvals.md).",
}


def keys_text(word: str | None) -> str:
    """Text of the keys that `word` selects, for a terminal of 100 columns.

    Args:
        word: a section, also an inner one (`train_policy.lora`), or a part of a key; None: everything.

    Raises:
        ConfigError: no section has that name, and no key contains it.
    """
    return "\n\n".join(_section_text(section) for section in _asked_for(word))


def keys_page() -> str:
    """docs/configuration.md: a table for each section."""
    return "\n".join([_HEAD, *(_table(section) for section in config_sections())])


def _asked_for(word: str | None) -> tuple[ConfigSection, ...]:
    sections = config_sections()
    if word is None:
        return sections
    name = word.lower().strip(".")
    found = _only(sections, lambda key: _lies_at(key.path.lower(), name)) if name else ()
    found = found or (_only(sections, lambda key: name in key.path) if name else ())
    if not found:
        raise ConfigError(f"`{word}`: no section has this name, and no key contains it. {_hint(name, sections)}")
    return found


def _lies_at(path: str, name: str) -> bool:
    """Whether the key is in the section `name`, or `name` is its full dotted path."""
    return path.startswith(f"{name}.") or ("." in name and path == name)


def _only(sections: tuple[ConfigSection, ...], is_wanted: Callable[[ConfigKey], bool]) -> tuple[ConfigSection, ...]:
    kept = (replace(section, keys=tuple(filter(is_wanted, section.keys))) for section in sections)
    return tuple(section for section in kept if section.keys)


def _hint(word: str, sections: tuple[ConfigSection, ...]) -> str:
    """A section or key with a similar name, else all sections."""
    paths = [key.path for section in sections for key in section.keys]
    names = [section.path for section in sections if section.path and not section.is_item]
    words = dict.fromkeys([*names, *(part for path in paths for part in path.split(".")), *paths])
    meant = nearest_word(word, words if "." in word else names) or nearest_word(word, words)
    return near_match(word, [meant] if meant else names)


def _section_text(section: ConfigSection) -> str:
    of_type = f", type {section.type_name}" if section.type_name else ""
    title = f"{section.path}{of_type}: {section.text}" if section.path else section.text
    return "\n".join([textwrap.fill(title, _WIDTH), *(_key_text(key) for key in section.keys)])


def _key_text(key: ConfigKey) -> str:
    words = {REQUIRED: REQUIRED, OWN_DEFAULTS: f"has {OWN_DEFAULTS}"}
    head = f"  {key.path}: {key.kind}; {words.get(key.default, f'default {key.default}')}"
    lines = textwrap.wrap(head, _WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False)
    lines += textwrap.wrap(key.text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    return "\n".join(lines)


def _table(section: ConfigSection) -> str:
    rows = ["| key | type | default | what it does |", "|---|---|---|---|"]
    for key in section.keys:
        name = key.path.removeprefix(f"{section.path}.")
        linked = f"[`{name}`](#{name})" if not section.path and "section" in key.kind else f"`{name}`"
        default = key.default if key.default in (REQUIRED, OWN_DEFAULTS) else f"`{key.default}`"
        rows.append(f"| {linked} | {_cell(key.kind)} | {default} | {_cell(key.text)} |")
    note = _NOTES.get(section.path)
    paragraphs = [f"{_heading(section)}\n", f"{_cell(section.text)}\n", *([f"{note}\n"] if note else [])]
    return "\n".join([*paragraphs, *(rows if section.keys else []), *([""] if section.keys else [])])


def _heading(section: ConfigSection) -> str:
    if section.is_item:
        of_type = f" of type `{section.type_name}`" if section.type_name else ""
        return f"### Each item of `{section.path.removesuffix('.N')}`{of_type}"
    return f"## `{section.path}`" if section.path else "## Top of the file"


def _cell(text: str) -> str:
    """Escape text for a table in Markdown: `|`, and `<` outside of code."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def _add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "word",
        nargs="?",
        metavar="SECTION",
        help="only this section, or the keys that contain this (example: gates.policy, or learning_rate)",
    )
    what.add_argument(
        "--write", type=Path, metavar="FILE", help="write all keys as a page (example: --write docs/configuration.md)"
    )


def _run(parsed: argparse.Namespace) -> int:
    if parsed.write is None:
        print(keys_text(parsed.word))
        return 0
    try:
        parsed.write.write_text(keys_page(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{parsed.write} cannot be written: {error.strerror}. Name a file in an existing folder."
        ) from error
    print(parsed.write)
    return 0


KEYS = Command(_add_options, _run)
