"""A configuration is a stranger's text: it must not hang, blow up, or quietly mean something else than it says."""

from pathlib import Path

import pytest

from tasks.config.errors import ConfigError, InvalidConfigError
from tasks.config.yaml_reader import read_yaml_file, read_yaml_value


def read(folder: Path, text: str | bytes) -> dict[str, object]:
    path = folder / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml_file(path, shown="x.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.0e-5", 1e-5),
        ("5", 5),
        ("1_000", 1000),
        ("010", 10),
        ("-3", -3),
        (".5", 0.5),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-31", "2024-01-31"),
        ("null", None),
        ("", None),
        ("[1, a]", [1, "a"]),
        ('"1"', "1"),
    ],
)
def test_plain_scalars_mean_what_a_person_means(text: str, value: object) -> None:
    found = read_yaml_value(text, shown="--set")
    assert found == value
    assert type(found) is type(value)


def test_every_key_given_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        read(tmp_path, "run:\n  name: a\n  name: b\nrun:\n  seed: 1\n")
    assert str(caught.value) == (
        "x.yaml has 2 mistakes:\n"
        "  run: given twice, in lines 1 and 4. Keep one.\n"
        "  run.name: given twice, in lines 2 and 3. Keep one."
    )


def test_a_merged_section_may_be_overridden(tmp_path: Path) -> None:
    assert read(tmp_path, "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n")["b"] == {"x": 3, "y": 2}


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(ConfigError, match="more than 20,000 values once every alias is written out"):
        read(tmp_path, f"l0: &l0 [lol, lol]\n{levels}")


def test_a_bomb_of_merge_keys_is_refused_at_once(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
    with pytest.raises(ConfigError, match="more than 20,000 values"):
        read(tmp_path, f"l0: &l0 {{a: 1}}\n{levels}")


def test_an_alias_that_contains_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1: an alias that contains itself"):
        read(tmp_path, "a: &a [*a]\n")


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested deeper than 32 levels"):
        read(tmp_path, "a: " + "[" * 5000 + "]" * 5000)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than 256 KiB"):
        read(tmp_path, "a: " + "x" * 300_000)


def test_a_tab_is_named_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2, column 1: .*YAML indents with spaces, not tabs"):
        read(tmp_path, "run:\n\tname: a\n")


def test_broken_yaml_is_named_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml is no valid YAML: line 3, column 8: .*that begins in line 2"):
        read(tmp_path, "run:\n  tags: [a, b\ndataset: {}\n")


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system [true]",
        "a: !!python/name:os.system",
        "a: !unknown 1",
        "a: !!binary L2V0Yy9wYXNzd2Q=",
        "a: !!set {b: null}",
        "a: !!omap [b: 1]",
        "a: !!pairs [b: 1]",
        "a: !!timestamp 2024-01-31",
        "a: !!float x",
        "a: !!bool x",
        "a: !!int x",
        "? [a]\n: 1\n",
        "--- a: 1\n--- b: 2",
    ],
)
def test_tags_and_odd_documents_are_refused_without_running_anything(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml is no valid YAML"):
        read(tmp_path, text)


@pytest.mark.parametrize(("text", "found"), [("", "nothing"), ("- a", "a list"), ("words", "a str")])
def test_a_file_without_sections_says_what_it_holds(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=f"x.yaml holds {found}; wanted sections of keys"):
        read(tmp_path, text)


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"a: \x00", b"a: " + b"9" * 5000])
def test_bytes_that_are_no_configuration_give_one_message(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml"):
        read(tmp_path, text)
