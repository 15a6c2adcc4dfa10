"""Read YAML from an untrusted author: bounded size, depth and aliases, no duplicate keys.

Differs from PyYAML's `safe_load`, which surprises here: `1e-5` is a number, `no` and `on` are text, `010` is ten,
`12:30` and `2024-01-31` are text (YAML 1.2's reading).
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from tasks.config.errors import ConfigError, InvalidConfigError, Mistake

_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 32
_MAX_NODES = 20_000

# Escapes can write characters that no text file holds; Prefect accepts one in a tag, then fails at each list with it.
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

_NULL, _BOOL, _INT, _FLOAT, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "merge"))
# Bytes, sets and the like are no values of a configuration, and would bypass checks of texts.
_FOREIGN_TAGS = ("binary", "omap", "pairs", "set", "timestamp")


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's plain scalars, and constructors only for JSON's types."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(tag, re.compile(pattern), list(first) if first else None)


_resolve(_NULL, r"^(?:~|null|Null|NULL|)$", "~nN")
_Loader.yaml_implicit_resolvers[""] = [(_NULL, re.compile(r"^$"))]
_resolve(_BOOL, r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolve(_INT, r"^[-+]?[0-9][0-9_]*$", "-+0123456789")
_resolve(
    _FLOAT,
    r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
    "-+0123456789.",
)
_resolve(_MERGE, r"^<<$", "<")


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = loader.construct_scalar(node).replace("_", "")
    try:
        return int(digits, 10)
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, f"{digits[:20]} is no number", node.start_mark) from error


def _refuse_tag(loader: _Loader, node: yaml.Node) -> None:
    tag = node.tag.replace("tag:yaml.org,2002:", "!!")[:100]
    text = f"the tag `{tag}` stands for no value of a configuration. Write a text, a number, a list or a section"
    raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)


_Loader.add_constructor(_INT, _construct_int)
_Loader.add_constructor(None, _refuse_tag)  # any tag without a constructor
for _name in _FOREIGN_TAGS:
    _Loader.yaml_constructors.pop(f"tag:yaml.org,2002:{_name}")


def read_yaml_file(path: Path, *, shown: str) -> dict[str, Any]:
    """The mapping that the file holds.

    Args:
        shown: the file's name in messages.

    Raises:
        ConfigError: it is unreadable, too large, invalid (with line and column) or no mapping.
        InvalidConfigError: keys are given twice; lists all of them.
    """
    try:
        with open(path, "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{shown} cannot be read: {error.strerror}.") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{shown} is larger than {_MAX_BYTES // 1024} KiB; that is no configuration.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown} is not UTF-8 text (byte {error.start}).") from error
    value = read_yaml_value(text, shown=shown)
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f"{shown} holds {found}; wanted sections of keys, such as `run:` with `name:` below it.")
    return value


def read_yaml_value(text: str, *, shown: str) -> Any:
    """The value that a piece of YAML stands for: `1e-5`, `null`, `[a, b]`. Raises as `read_yaml_file`."""
    try:
        _refuse_depth(text, shown=shown)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            duplicates: list[Mistake] = []
            _measure(node, {}, (), duplicates, shown=shown)
            if duplicates:
                raise InvalidConfigError(shown, duplicates)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown} is no valid YAML: {_explained(error)}") from error
    except (KeyError, ValueError) as error:  # PyYAML's constructors of `!!bool maybe` and `!!float x`
        raise ConfigError(f"{shown} is no valid YAML: a tag (`!!`) does not fit what follows. Leave it out.") from error
    except TypeError as error:
        raise ConfigError(f"{shown} is no valid YAML: a key is a list or a mapping; keys are words.") from error


def _refuse_depth(text: str, *, shown: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 0
            raise ConfigError(
                f"{shown}, line {line}: nested deeper than {_MAX_DEPTH} levels; that is no configuration."
            )


def _measure(
    node: yaml.Node, sizes: dict[int, int], path: tuple[str, ...], duplicates: list[Mistake], *, shown: str
) -> int:
    """Number of values below `node` with every alias written out; collects keys that are given twice."""
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise ConfigError(f"{shown}, line {node.start_mark.line + 1}: an alias that contains itself.")
        return sizes[id(node)]
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.ScalarNode) and (found := _NO_TEXT.search(node.value)):
        raise ConfigError(
            f"{shown}, line {node.start_mark.line + 1}: the character U+{ord(found[0]):04X} is not allowed in a "
            "configuration. Leave it out."
        )
    if isinstance(node, yaml.MappingNode):
        _find_duplicates(node, path, duplicates)
        for key, value in node.value:
            size += _measure(key, sizes, path, duplicates, shown=shown)
            size += _measure(value, sizes, (*path, str(key.value)), duplicates, shown=shown)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            size += _measure(item, sizes, (*path, str(index)), duplicates, shown=shown)
    if size > _MAX_NODES:
        raise ConfigError(
            f"{shown}, line {node.start_mark.line + 1}: more than {_MAX_NODES:,} values once every alias is written "
            f"out; that is no configuration."
        )
    sizes[id(node)] = size
    return size


def _find_duplicates(node: yaml.MappingNode, path: tuple[str, ...], duplicates: list[Mistake]) -> None:
    lines: dict[Hashable, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            duplicates.append(
                Mistake(".".join((*path, key.value)), f"given twice, in lines {lines[key.value]} and {line}. Keep one.")
            )
        lines[key.value] = line


def _explained(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{error}."
    mark = error.problem_mark
    advice = ""
    if error.problem and "'\\t'" in error.problem:
        advice = " YAML indents with spaces, not tabs."
    begun = f" that begins in line {error.context_mark.line + 1}" if error.context_mark else ""
    context = f"{error.context}{begun}, " if error.context else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {context}{error.problem}.{advice}"
