"""Put the texts of chat templates and of reward functions into a run's configuration: the run depends on no file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.config.errors import Mistake, near_match

_SECTIONS, _KEY = ("train_sft", "train_reward_model", "train_dpo"), "chat_template"
# Lists whose entries of type `python` name a file with a function.
FUNCTIONS = (("train_policy", "rewards"), ("evaluate_policy", "judges"))
_SUFFIXES = (".jinja", ".jinja2", ".j2")
# The largest template of a well-known model has 20 kB.
_MAX_BYTES = 200_000


def put_file_texts(tree: dict[str, Any], known: Mapping[str, Path]) -> list[Mistake]:
    """Put the texts of all files that count as text into `tree`; return the mistakes. `known`: as put_template_text."""
    return [*put_template_text(tree, known), *put_reward_code(tree)]


def put_reward_code(tree: dict[str, Any]) -> list[Mistake]:
    """Put the text of its file beside each reward and judge of type `python` in `tree`, unless it is there already."""
    return [mistake for section, key in FUNCTIONS for mistake in _put_code(tree, section, key)]


def _put_code(tree: dict[str, Any], name: str, key: str) -> list[Mistake]:
    section = tree.get(name)
    terms = section.get(key) if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(terms, list):
        return []
    mistakes, found = [], list[Any]()
    for place, term in enumerate(terms):
        file = term.get("file") if isinstance(term, dict) and term.get("type") == "python" else None
        if isinstance(file, str) and file.endswith(".py") and not term.get("code"):
            try:
                term = {**term, "code": _text_of_file(_here_or_in_checkout(file), what="a function")}
            except (OSError, ValueError) as error:
                why = f"{file} cannot be read: {error.strerror}." if isinstance(error, OSError) else str(error)
                mistakes.append(Mistake(f"{name}.{key}.{place}.file", why))
        found.append(term)
    tree[name] = {**section, key: found}
    return mistakes


def _here_or_in_checkout(file: str) -> Path:
    """The file below the current directory or, if there is none, below this checkout, as the files of `configs/`."""
    shipped = Path(__file__).resolve().parents[2] / file
    return shipped if shipped.is_file() and not Path(file).exists() else Path(file)


def put_template_text(tree: dict[str, Any], known: Mapping[str, Path]) -> list[Mistake]:
    """Replace each name or path of a chat template in `tree` by its text; return the mistakes.

    A value that holds `{` is a template already.

    Args:
        known: the templates of configs/chat_templates by name.
    """
    mistakes = []
    for name in _SECTIONS:
        section = tree.get(name)
        named = section.get(_KEY) if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(named, str) or "{" in named:
            continue
        tree[name] = {key: value for key, value in section.items() if key != _KEY}
        try:
            tree[name][_KEY] = _text_of(named, known)
        except (OSError, ValueError) as error:
            why = f"{named} cannot be read: {error.strerror}." if isinstance(error, OSError) else str(error)
            mistakes.append(Mistake(f"{name}.{_KEY}", why))
    return mistakes


def _text_of(named: str, known: Mapping[str, Path]) -> str:
    path = Path(named) if named.endswith(_SUFFIXES) else known.get(named)
    if path is None:
        raise ValueError(
            f"`{named}`: no such template, and no .jinja file. {near_match(named, sorted(known))}".rstrip()
        )
    return _text_of_file(path, what="a template")


def _text_of_file(path: Path, *, what: str) -> str:
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; at most {_MAX_BYTES:,} are read as {what}.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text (byte {error.start}).") from error
