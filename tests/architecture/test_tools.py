"""A tool is a program behind the wall that no pipeline has: one name everywhere, and nothing of torch outside."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from containers.contracts.configs.score_file import ScoreFileConfig
from containers.contracts.names import StageName, ToolName

CONFIGS = {ToolName.SCORE_FILE: ScoreFileConfig}


@pytest.mark.parametrize("tool", ToolName)
def test_every_tool_has_a_task_a_program_and_a_config_of_its_name(tool: ToolName, project: Path) -> None:
    assert f"def {tool}(" in (project / "tasks" / f"{tool}.py").read_text()
    assert importlib.util.find_spec(f"containers.stages.{tool}") is not None
    assert CONFIGS[tool].model_fields["stage"].default == tool


def test_no_tool_is_a_stage_of_the_pipeline() -> None:
    assert not set(ToolName) & set(StageName)


@pytest.mark.waits
def test_scoring_a_file_imports_neither_what_trains_nor_prefect_nor_mlflow() -> None:
    code = "import flows.cli.score, sys; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & {"torch", "transformers", "trl", "peft", "datasets", "prefect", "mlflow"}
