"""Code that lies in a model or data folder is never run: every loader that could run it is told not to."""

import ast
from pathlib import Path

import pytest

# `from_pretrained` of these reads settings or weights and has no such argument.
_WITHOUT_CODE = {"LoraConfig", "PeftModel"}
_LOADERS = {"load_dataset", "load_dataset_builder", "pipeline", "LLM", "EngineArgs", "AsyncEngineArgs"}
_METHODS = {"from_pretrained", "from_config"}


def _silent(source: str) -> list[tuple[int, str]]:
    """The calls of loaders that do not say `trust_remote_code=False`, with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
        is_loader = name in _LOADERS or (name in _METHODS and owner.rpartition(".")[2] not in _WITHOUT_CODE)
        says_no = any(
            keyword.arg == "trust_remote_code"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is False
            for keyword in node.keywords
        )
        if is_loader and not says_no:
            found.append((node.lineno, ast.unparse(called)))
    return found


@pytest.mark.parametrize(
    ("source", "num_silent"),
    [
        ("AutoTokenizer.from_pretrained(folder)", 1),
        ("transformers.AutoConfig.from_pretrained(folder, trust_remote_code=None)", 1),
        ("auto_class.from_pretrained(folder, trust_remote_code=True)", 1),
        ("auto_class.from_pretrained(folder, trust_remote_code=False)", 0),
        ("GenerationConfig.from_pretrained(folder)", 1),
        ("peft.PeftModel.from_pretrained(base, folder)", 0),
        ("vllm.LLM(model=folder)", 1),
        ("load_dataset('json')", 1),
    ],
)
def test_what_counts_as_a_loader(source: str, num_silent: int) -> None:
    assert len(_silent(source)) == num_silent


@pytest.mark.waits
def test_every_loader_says_that_code_of_the_folder_is_not_to_run(project: Path) -> None:
    """Where nothing is said, transformers asks on standard input, and `y` runs the code."""
    silent = [
        f"{path.relative_to(project)}:{line} {call}"
        for folder in ("flows", "tasks", "containers")
        for path in sorted((project / folder).rglob("*.py"))
        for line, call in _silent(path.read_text())
    ]
    assert silent == []
