"""A runtime has its name in one file; everything else asks what it can do."""

import ast
from pathlib import Path

import pytest

from containers.contracts.registries import AUTO, RUNTIMES, capabilities, planned_runtime

OWN = ("containers/contracts/registries.py", "containers/launch/")


def test_no_code_compares_a_runtimes_name(project: Path) -> None:
    found = []
    for path in sorted(path for part in ("containers", "tasks", "flows") for path in (project / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                values = [one.value for one in (node.left, *node.comparators) if isinstance(one, ast.Constant)]
                if {*values} & {AUTO, *RUNTIMES}:
                    found.append(f"{path.relative_to(project)}:{node.lineno}")
    assert not found, "ask containers.contracts.registries.capabilities instead"


def test_names_of_runtimes_stand_where_they_are_defined(project: Path) -> None:
    found = []
    for path in sorted(path for part in ("containers", "tasks", "flows") for path in (project / part).rglob("*.py")):
        shown = str(path.relative_to(project))
        if shown.startswith(OWN):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in RUNTIMES:
                found.append(f"{shown}:{node.lineno}")
    assert not found


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_runtime_says_what_it_can_do(name: str) -> None:
    can = capabilities(name)
    assert RUNTIMES.module_of(name).startswith("containers.launch.")
    assert not can.confines or can.runs_image, "what confines has an image of its own"
    assert planned_runtime(name) == name


def test_auto_is_planned_with_the_runtime_that_limits_memory() -> None:
    assert capabilities(planned_runtime(AUTO)).enforces_memory
