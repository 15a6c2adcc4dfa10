"""The verdicts of a judge behind an address: collected pair by pair, kept at once, so that a break loses none."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from containers.contracts.configs.parts.judge_question import judge_question, judge_version
from containers.contracts.configs.parts.judges import EndpointJudge
from containers.contracts.digests import file_sha256
from containers.contracts.names import JUDGE_INPUT, SAMPLED_FILE, VERDICTS_FILE
from containers.contracts.spec import StageInput
from tasks.judges.endpoint import Endpoint, EndpointDownError, EndpointError, judge_key
from tasks.judges.people import Pairs
from tasks.sources.errors import SourceNotFoundError, UnusableSourceError
from tasks.store.lock import sole_worker

# Below the store of the runs.
VERDICTS_FOLDER = "verdicts"
# So many questions in a row without an answer, and the judge counts as down.
_MOST_FAILURES = 8


def known_verdicts(judge: EndpointJudge, completions: Pairs, folder: Path) -> StageInput:
    """The same input, if the judge has been asked about every pair; asks nothing.

    Raises:
        SourceNotFoundError: it has not.
    """
    file = folder / _key(judge, completions) / VERDICTS_FILE
    known = {_identity(line) for line in _lines(file)}
    if any(_identity(row) not in known for row in _questions(judge, Path(completions.path) / SAMPLED_FILE)):
        raise SourceNotFoundError(f"judge {judge.name} was not asked about every pair yet.", "The run asks it.")
    return _input(judge, file)


def collected(judge: EndpointJudge, completions: Pairs, folder: Path, *, say: Callable[[str], None]) -> StageInput:
    """The input of evaluate_policy with what the judge wrote about each pair in both orders.

    What was collected before is not asked again.

    Args:
        folder: where verdicts are kept; one below it for each judge and set of completions.

    Raises:
        UnusableSourceError: the judge is down, or refuses the key, or the key is missing; what it wrote is kept.
    """
    file = folder / _key(judge, completions) / VERDICTS_FILE
    with sole_worker(file.parent, holder=f"judge {judge.name}", say=say, should_stop=lambda: False):
        file.parent.mkdir(parents=True, exist_ok=True)
        _complete(judge, completions, file, say=say)
        return _input(judge, file)


def _complete(judge: EndpointJudge, completions: Pairs, file: Path, *, say: Callable[[str], None]) -> None:
    """Ask what is not answered yet, and bring the file in order."""
    _in_order(file)  # without a line that a break cut off
    known = {_identity(line) for line in _lines(file)}
    asked = [row for row in _questions(judge, Path(completions.path) / SAMPLED_FILE) if _identity(row) not in known]
    if asked:
        say(f"judge {judge.name}: {len(asked):,} questions, {len(known):,} answered before")
        try:
            _ask(judge, Endpoint(judge, judge_key(judge)), asked, file)
        except EndpointDownError as error:
            raise UnusableSourceError(
                f"judge {judge.name} at {judge.url} cannot be asked: {error}.",
                "What it answered so far is kept. Start the judge, or correct its address and key, and run the same "
                "command again.",
            ) from error
    _in_order(file)


def _input(judge: EndpointJudge, file: Path) -> StageInput:
    origin = f"{judge.model}, question {judge_version(judge.criteria)}"
    digest = f"sha256:{file_sha256(file)}"
    return StageInput(name=f"{JUDGE_INPUT}_{judge.name}", path=str(file.parent), digest=digest, origin=origin)


def _key(judge: EndpointJudge, completions: Pairs) -> str:
    text = json.dumps([completions.digest, judge.model, judge.max_tokens, judge_version(judge.criteria)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _questions(judge: EndpointJudge, sampled: Path) -> Iterator[dict[str, Any]]:
    """A question for each pair of different texts, in both orders."""
    for place, row in enumerate(pq.read_table(sampled, columns=["prompt", "policy", "reference"]).to_pylist()):
        if row["policy"] == row["reference"]:
            continue
        for policy_first in (True, False):
            answers = (row["policy"], row["reference"]) if policy_first else (row["reference"], row["policy"])
            text = judge_question(row["prompt"], *answers, criteria=judge.criteria)
            yield {"place": place, "policy_first": policy_first, "question": text}


def _ask(judge: EndpointJudge, endpoint: Endpoint, asked: Sequence[dict[str, Any]], file: Path) -> None:
    lock, failures, down = threading.Lock(), [0], threading.Event()

    def ask(row: dict[str, Any]) -> str:
        if down.is_set():
            return ""
        problem, answer = "", ""
        try:
            answer = endpoint.answer(row["question"])
        except EndpointDownError as error:
            problem = str(error)
            with lock:
                failures[0] += 1
                if failures[0] >= _MOST_FAILURES or "key" in problem:
                    down.set()
            return problem
        except EndpointError as error:
            problem = str(error)
        line = {"place": row["place"], "policy_first": row["policy_first"], "answer": answer, "problem": problem}
        with lock:
            failures[0] = 0
            with open(file, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        return ""

    with ThreadPoolExecutor(judge.parallel) as pool:
        problems = [problem for problem in pool.map(ask, asked) if problem]
    if problems:
        raise EndpointDownError(problems[0])


def _lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of the file; a last one that a break cut off is none."""
    if not file.is_file():
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _identity(row: dict[str, Any]) -> tuple[int, bool]:
    return int(row["place"]), bool(row["policy_first"])


def _in_order(file: Path) -> None:
    """Write the file again in the order of the pairs, so that its digest does not depend on who answered first."""
    lines = sorted({_identity(line): line for line in _lines(file)}.values(), key=_identity)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        new = file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(file)
