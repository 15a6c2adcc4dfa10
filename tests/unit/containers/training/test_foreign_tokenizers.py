"""A tokenizer folder may bring code of its own. It is never run, and nobody is asked whether it may."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.factories.tiny_policy import tiny_tokenizer

pytestmark = pytest.mark.stages

_PROGRAM = """
import sys
from pathlib import Path
from containers.harness.errors import MissingPrerequisiteError
from containers.models.tokenizer_loading import load_tokenizer
try:
    load_tokenizer(Path(sys.argv[1]))
except MissingPrerequisiteError as error:
    print(error)
print(repr(sys.stdin.read()))
"""


@pytest.mark.waits
def test_code_beside_a_tokenizer_is_neither_run_nor_asked_about(tmp_path: Path) -> None:
    folder, canary = tmp_path / "model", tmp_path / "canary"
    tiny_tokenizer().save_pretrained(folder)
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\nclass EvilTokenizer: pass\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    auto_map = {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}
    changed = {**settings, "tokenizer_class": "EvilTokenizer", "auto_map": auto_map}
    (folder / "tokenizer_config.json").write_text(json.dumps(changed))
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder)], input="y\ny\n", capture_output=True, text=True, check=True
    )
    assert not canary.exists()
    assert "[y/N]" not in found.stdout
    *said, answers_left = found.stdout.strip().splitlines()
    assert answers_left == repr("y\ny\n")
    assert "holds no tokenizer that can be loaded" in said[0]
    assert "Put the model's own tokenizer files there." in said[0]
