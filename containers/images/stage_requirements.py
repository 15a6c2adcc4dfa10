"""Prints what pip installs in the stage image: the `stages` extra of pyproject.toml, and pydantic for the contract.

Runs inside the image build (`python stage_requirements.py pyproject.toml`), so it needs the standard library only.
The pins are in pyproject.toml and nowhere else.
"""

import re
import sys
import tomllib
from pathlib import Path

# Of the orchestrator's dependencies, a stage needs only what the contract is written in.
_CONTRACT_PACKAGES = ("pydantic",)


def stage_requirements(pyproject: Path) -> list[str]:
    """Requirement lines of the stage image.

    Raises:
        KeyError: pyproject.toml has no `stages` extra or no dependencies.
        ValueError: a package of the contract is not among the dependencies.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    by_name = {re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower(): line for line in project["dependencies"]}
    missing = [name for name in _CONTRACT_PACKAGES if name not in by_name]
    if missing:
        raise ValueError(f"{pyproject}: the contract needs {', '.join(missing)}, which is no dependency there.")
    return [*(by_name[name] for name in _CONTRACT_PACKAGES), *project["optional-dependencies"]["stages"]]


if __name__ == "__main__":
    sys.stdout.write("\n".join(stage_requirements(Path(sys.argv[1]))) + "\n")
