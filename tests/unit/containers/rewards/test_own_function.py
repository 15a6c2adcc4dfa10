"""A function of the user's can do anything wrong, and the training counts it and goes on."""

from pathlib import Path

import pytest

from containers.contracts.configs.parts.rewards import PythonTerm
from containers.harness.errors import BadConfigError
from containers.rewards.base import NoValue, Value
from containers.rewards.processes import workers
from tests.unit.factories.prompt_factory import answered, started, values_of

pytestmark = pytest.mark.stages

CODE = """
import os, socket, sys, time

def score(prompt, completion, answer, columns):
    what = completion.split()[0]
    if what == "length":
        print("this is not an answer")
        return len(completion)
    if what == "prompt":
        return float(prompt[-1]["content"] == "Hi" and answer == "42" and columns == {})
    if what == "raise":
        raise ValueError("no such word")
    if what == "none":
        return None
    if what == "nan":
        return float("nan")
    if what == "text":
        return "1"
    if what == "exit":
        sys.exit(3)
    if what == "die":
        os.abort()
    if what == "loop":
        while True: pass
    if what == "sleep":
        time.sleep(3600)
    if what == "memory":
        return len(bytearray(1 << 40))
    if what == "write":
        with open("/tmp/rlhf-own-function", "w") as file:
            file.write("x" * 10)
    if what == "variables":
        return float("RLHF_SECRET" not in os.environ)
    if what == "network":
        socket.create_connection(("192.0.2.1", 80), timeout=5)
        return 1.0
"""


def values(*texts: str, code: str = CODE, cpu_s: int = 1) -> list[Value]:
    term = PythonTerm(name="own", file="own.py", code=code, cpu_s=cpu_s)
    return values_of(term, *[answered(text, "42") for text in texts])


def test_it_gets_prompt_completion_answer_and_columns_and_may_print() -> None:
    assert values("length 9", "prompt") == [8.0, 1.0]


def test_every_way_to_fail_is_named_and_the_completions_beside_it_have_their_values() -> None:
    reasons = {
        "raise": "it raised ValueError: no such word",
        "none": "it cannot tell",
        "nan": "it returned nan",
        "text": "it returned str, not a number",
        "exit": "it raised SystemExit: 3",
        "die": "its process ended with SIGABRT",
        "loop": "it took more than 1 s of processor time",
        "memory": "it needs more memory than it may have",
        "network": "it raised OSError: [Errno 101] Network is unreachable",
        "write": "it raised OSError: [Errno 27] File too large",
    }
    texts = [text for what in reasons for text in (what, "length")]
    assert values(*texts) == [value for reason in reasons.values() for value in (NoValue(reason), 6.0)]


def test_one_that_sleeps_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WALL_S", 3.0)
    assert values("sleep", "length") == [NoValue("it took more than 3 s"), 6.0]


def test_it_sees_none_of_the_stages_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_SECRET", "s3cret")
    assert values("variables") == [1.0]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def other(): pass", "has no function score"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def score(:", "SyntaxError"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("import os; os.abort()", "its process ended with SIGABRT"),
    ],
)
def test_code_that_cannot_be_loaded_is_refused_with_its_file_and_why(code: str, why: str) -> None:
    with pytest.raises(BadConfigError, match=r"`own` cannot be used") as error:
        values("length", code=code)
    assert why in str(error.value)


def test_its_processes_are_gone_when_it_is_closed() -> None:
    reward = started(PythonTerm(name="own", file="own.py", code=CODE))
    pids = [worker._process.pid for worker in reward._workers._workers]  # type: ignore[attr-defined]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    reward.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
