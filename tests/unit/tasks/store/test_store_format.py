"""A store that a newer version wrote is left alone, and that is said; an old one is taken as it is."""

from importlib import metadata
from pathlib import Path

import pytest

from flows.cli.main import main
from tasks.store.format import STORE_FILE, STORE_FORMAT, NewerStoreError, mark_store, require_known_store


def test_a_store_without_a_mark_and_one_of_this_version_are_known(tmp_path: Path) -> None:
    require_known_store(tmp_path / "new")
    require_known_store(tmp_path)
    mark_store(tmp_path)
    require_known_store(tmp_path)
    assert metadata.version("rlhf-flows") in (tmp_path / STORE_FILE).read_text(encoding="utf-8")


def test_a_store_of_a_newer_version_is_refused_with_that_version(tmp_path: Path) -> None:
    newer = f'{{"format": {STORE_FORMAT + 1}, "written_by": "9.9.9", "a_new_key": true}}'
    (tmp_path / STORE_FILE).write_text(newer, encoding="utf-8")
    with pytest.raises(NewerStoreError, match=r"was written by rlhf-flows 9\.9\.9 .* nothing was changed"):
        require_known_store(tmp_path)


def test_a_mark_that_cannot_be_read_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_text('{"form', encoding="utf-8")
    with pytest.raises(NewerStoreError, match="cannot be read"):
        require_known_store(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["approve"],
        ["champion"],
        ["promote", "--model", "policy", "--version", "1", "--by", "Ada", "--reason", "r"],
        ["rollback", "--model", "policy", "--by", "Ada", "--reason", "r"],
        ["cache", "ls"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_at_a_newer_store_says_so_in_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / STORE_FILE).write_text(f'{{"format": {STORE_FORMAT + 1}, "written_by": "9.9.9"}}', encoding="utf-8")
    place = (
        ["--store", str(tmp_path)]
        if words[0] == "cache"
        else ["-c", "configs/runs/demo.yaml", "--set", f"run.store_dir={tmp_path}"]
    )
    assert main([*words, *place]) == 2
    told = capsys.readouterr()
    assert "was written by rlhf-flows 9.9.9" in told.err
    assert "Traceback" not in told.err
    assert told.out == ""
