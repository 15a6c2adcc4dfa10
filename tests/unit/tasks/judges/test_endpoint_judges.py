"""A judge behind an address may be down, slow, or silly; no answer may be lost, and its key may reach no file."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from containers.contracts.configs.parts.judges import EndpointJudge
from containers.contracts.names import SAMPLED_FILE, VERDICTS_FILE, StageName
from containers.contracts.spec import ArtifactRef
from containers.judges.endpoint import read_choice
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt
from containers.rollouts.sampled import Sampled, write_sampled
from tasks.checks.judges import endpoint_finding
from tasks.judges import endpoint as module
from tasks.judges.verdicts import collected, known_verdicts
from tasks.sources.errors import SourceNotFoundError, UnusableSourceError

pytestmark = pytest.mark.stages

KEY = "sk-judge-0123456789abcdef"


@dataclass
class Served:
    """A server with the paths of an OpenAI-compatible one.

    Attributes:
        answer: gives status and text for a question.
        seen: questions, in the order in which they came.
    """

    url: str
    answer: Callable[[str], tuple[int, str]] = lambda question: (200, "A")
    seen: list[str] = field(default_factory=list)
    wants_key: bool = False


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(module, "_FIRST_WAIT_S", 0.01)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _reply(self, status: int, body: object) -> None:
            text = json.dumps(body).encode() if not isinstance(body, bytes) else body
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self._reply(200, {"data": [{"id": "judge-7b"}]})

        def do_POST(self) -> None:
            if found.wants_key and self.headers.get("Authorization") != f"Bearer {KEY}":
                return self._reply(401, {"error": "no key"})
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = asked["messages"][0]["content"]
            found.seen.append(question)
            status, text = found.answer(question)
            if text == "nonsense":
                return self._reply(200, b"<html>")
            return self._reply(status, {"choices": [{"message": {"content": text}}]})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Served(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def completions(tmp_path: Path) -> ArtifactRef:
    """Three prompts; on the last one policy and reference wrote the same."""
    folder = tmp_path / "completions"
    folder.mkdir()
    turns = ({"role": "user", "content": "Which?"},)
    prompts = tuple(PolicyPrompt(str(place), "", turns, (1,)) for place in range(3))

    def written(texts: list[str]) -> tuple[Completion, ...]:
        return tuple(Completion((1,), (2,), text=text, ended=True) for text in texts)

    policy, reference = written(["good 0", "good 1", "same"]), written(["bad 0", "bad 1", "same"])
    write_sampled(Sampled(prompts, policy, reference, (0.0, 0.0, 0.0), ""), folder / SAMPLED_FILE)
    return ArtifactRef(stage=StageName.SAMPLE_COMPLETIONS, key="c" * 64, path=str(folder), digest="sha256:1")


def judge(served: Served, **changes: object) -> EndpointJudge:
    return EndpointJudge.model_validate({"url": served.url, "model": "judge-7b", "timeout_s": 5, **changes})


def prefers_good(question: str) -> tuple[int, str]:
    return 200, "A" if question.index("good") < question.index("bad") else "B"


def test_every_pair_is_shown_in_both_orders_and_equal_texts_are_not(
    served: Served, completions: ArtifactRef, tmp_path: Path
) -> None:
    served.answer = prefers_good
    found = collected(judge(served), completions, tmp_path / "verdicts", say=lambda _: None)
    lines = [json.loads(line) for line in (Path(found.path) / VERDICTS_FILE).read_text().splitlines()]
    assert [(line["place"], line["policy_first"], line["answer"]) for line in lines] == [
        (0, False, "B"),
        (0, True, "A"),
        (1, False, "B"),
        (1, True, "A"),
    ]
    assert found.name == "judge_endpoint" and len(served.seen) == 4


def test_what_was_answered_is_not_asked_again_and_the_file_is_the_same(
    served: Served, completions: ArtifactRef, tmp_path: Path
) -> None:
    served.answer = prefers_good
    first = collected(judge(served), completions, tmp_path, say=lambda _: None)
    served.seen.clear()
    assert collected(judge(served), completions, tmp_path, say=lambda _: None) == first
    assert known_verdicts(judge(served), completions, tmp_path) == first
    assert served.seen == []
    with pytest.raises(SourceNotFoundError):
        known_verdicts(judge(served, criteria="Be brief."), completions, tmp_path)


def test_a_judge_that_goes_down_keeps_what_it_answered_and_goes_on_later(
    served: Served, completions: ArtifactRef, tmp_path: Path
) -> None:
    served.answer = lambda question: prefers_good(question) if "good 0" in question else (503, "")
    with pytest.raises(UnusableSourceError, match="answered with status 503, 4 times"):
        collected(judge(served, parallel=1), completions, tmp_path, say=lambda _: None)
    served.answer = prefers_good
    served.seen.clear()
    said: list[str] = []
    found = collected(judge(served), completions, tmp_path, say=said.append)
    assert len(served.seen) == 2 and said == ["judge endpoint: 2 questions, 2 answered before"]
    assert len((Path(found.path) / VERDICTS_FILE).read_text().splitlines()) == 4


def test_a_busy_judge_is_asked_again(served: Served, completions: ArtifactRef, tmp_path: Path) -> None:
    busy = iter([429, 503])
    served.answer = lambda question: (status, "") if (status := next(busy, 0)) else prefers_good(question)
    collected(judge(served, parallel=1), completions, tmp_path, say=lambda _: None)
    assert len(served.seen) == 6


def test_a_slow_judge_is_down(served: Served, completions: ArtifactRef, tmp_path: Path) -> None:
    slow = threading.Event()

    def answer(question: str) -> tuple[int, str]:
        slow.wait(1.0)
        return 200, "A"

    served.answer = answer
    with pytest.raises(UnusableSourceError, match=r"did not answer within 0\.05 s, 4 times"):
        collected(judge(served, timeout_s=0.05, parallel=1), completions, tmp_path, say=lambda _: None)
    slow.set()


@pytest.mark.parametrize(("text", "status"), [("nonsense", 200), ("A", 400)])
def test_a_reply_that_is_no_answer_is_kept_as_that_and_ends_nothing(
    served: Served, completions: ArtifactRef, tmp_path: Path, text: str, status: int
) -> None:
    served.answer = lambda question: (status, text) if "good 0" in question else prefers_good(question)
    if text == "nonsense":  # it may be a proxy that answers while the judge is down
        with pytest.raises(UnusableSourceError, match="its reply is no JSON, 4 times"):
            collected(judge(served), completions, tmp_path, say=lambda _: None)
        return
    found = collected(judge(served), completions, tmp_path, say=lambda _: None)
    lines = [json.loads(line) for line in (Path(found.path) / VERDICTS_FILE).read_text().splitlines()]
    assert [bool(line["problem"]) for line in lines] == [True, True, False, False]


def test_a_line_that_a_break_cut_off_is_asked_again(served: Served, completions: ArtifactRef, tmp_path: Path) -> None:
    served.answer = prefers_good
    found = collected(judge(served), completions, tmp_path, say=lambda _: None)
    file = Path(found.path) / VERDICTS_FILE
    file.write_text(file.read_text()[:-20])
    served.seen.clear()
    assert collected(judge(served), completions, tmp_path, say=lambda _: None) == found
    assert len(served.seen) == 1


def test_the_key_is_sent_and_stands_in_no_file_message_or_log(
    served: Served,
    completions: ArtifactRef,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.wants_key, served.answer = True, prefers_good
    asked = judge(served, key="JUDGE_KEY")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(UnusableSourceError, match="neither a variable of that name nor the Secret block judge-key"):
        collected(asked, completions, tmp_path, say=lambda _: None)
    monkeypatch.setenv("JUDGE_KEY", "another-key-of-enough-letters")
    with pytest.raises(UnusableSourceError, match="refuses the key") as refused:
        collected(asked, completions, tmp_path, say=lambda _: None)
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with caplog.at_level(logging.DEBUG):
        found = collected(asked, completions, tmp_path, say=lambda _: None)
    written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*.jsonl"))
    shown = f"{written}{caplog.text}{refused.value}{found}{module.Endpoint(asked, KEY)}{asked}"
    assert KEY not in shown and "another-key" not in shown


def test_the_check_names_what_is_wrong_before_anything_is_spent(served: Served) -> None:
    assert endpoint_finding(judge(served)).verdict == "ok"
    wrong = endpoint_finding(judge(served, model="judge-7"))
    assert wrong.verdict == "failure" and "judge-7b" in wrong.found
    down = endpoint_finding(judge(served, url="http://127.0.0.1:9/v1"))
    assert down.verdict == "failure" and "does not answer" in down.found


@pytest.mark.parametrize("url", ["http://user:secret@host/v1", "ftp://host", "host/v1", "http://host/v1?key=x"])
def test_an_address_holds_no_login(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        EndpointJudge(url=url, model="m")


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("A", "first"),
        ("The better answer is B.", "second"),
        ("Answer B is wrong, so: A", "first"),
        ("TIE", "tie"),
        ("<think>B? No.</think>A", "first"),
        ("<think>B, since", None),
        ("Both are fine", None),
        ("", None),
    ],
)
def test_a_written_answer_is_read_by_its_last_letter_behind_its_thought(text: str, choice: str | None) -> None:
    assert read_choice(text).choice == choice
