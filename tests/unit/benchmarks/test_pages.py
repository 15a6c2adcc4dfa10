"""A figure without its commit cannot be told from one of a program that is no more."""

import re
from pathlib import Path

import pytest

from benchmarks.speed_table import write_part

_COMMAND = re.compile(r"^ *`?(python -m benchmarks\.\w+.*?)`?$", re.MULTILINE)
_MEASURED = re.compile(r"\d{4}, commit [0-9a-f]{7,}|[Cc]ommit not recorded")


def test_every_table_says_which_commit_it_was_measured_at(project: Path) -> None:
    silent = []
    for page in sorted((project / "benchmarks").glob("*.md")):
        if page.name == "README.md":
            continue
        places = list(_COMMAND.finditer(text := page.read_text(encoding="utf-8")))
        assert places, page.name
        ends = [*(place.start() for place in places[1:]), len(text)]
        silent += [
            f"{page.name}: {place.group(1)}"
            for place, end in zip(places, ends, strict=True)
            if not _MEASURED.search(text[place.end() : end])
        ]
    assert silent == []


def test_a_written_part_has_command_date_commit_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x.py", "--seeds", "1", "2", "--write"])
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nQuestion?\n\n## Other\n\nstays\n\n## Letters\n\nold\n", encoding="utf-8")
    write_part(page, "new", module="benchmarks.x", title="Title", heading="Letters", measured="0a1b2c3")
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "## Other\n\nstays\n" in text
    part = text.partition("## Letters\n\n")[2]
    assert part.startswith("`python -m benchmarks.x --seeds 1 2 --write`\n\n")
    assert re.search(r"\n\d\d \w+ 20\d\d, commit 0a1b2c3; Python 3\.[\d.]+, .+, \d+ cores\.\n", part)
    assert part.endswith("\nnew\n")


def test_a_speed_in_the_readme_stands_on_the_page_of_its_command(project: Path) -> None:
    readme = (project / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([\d.]+)× \| \[`(benchmarks\.\w+)`\]\((benchmarks/\w+\.md)\) \|", readme)
    assert len(rows) >= 3
    for figure, module, page in rows:
        text = (project / page).read_text(encoding="utf-8")
        assert re.search(rf"^\|.* {re.escape(figure)} \([\d.]+ to [\d.]+\)", text, re.MULTILINE), (figure, page)
        assert f"`python -m {module} " in text
        assert page == f"{module.replace('.', '/')}.md"
