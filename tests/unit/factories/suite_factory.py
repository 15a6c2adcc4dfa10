"""Rows of the real schemas, files of them, and reward models that are known by their scores."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from containers.contracts.registries import BENCHMARKS
from containers.evals.suites.base import Intervals, ScoredItem, SuiteItem, SuiteRows

INTERVALS = Intervals(confidence=0.95, num_bootstrap=200, seed=7)
Row = dict[str, Any]


def write(folder: Path, rows: Iterable[Mapping[str, Any]], name: str = "rows.jsonl") -> Path:
    """A file of JSON lines; characters outside ASCII are escaped, so that lone surrogates can be written."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(benchmark: str, folder: Path, rows: Iterable[Mapping[str, Any]]) -> SuiteRows:
    found = BENCHMARKS[benchmark].read(write(folder, rows))
    assert found.rows_read == len(found.items) + sum(found.left_out.values())
    return found


def scored(rows: SuiteRows, score: Callable[[SuiteItem, int], float]) -> list[ScoredItem]:
    """The items with `score(item, place of the response)`."""
    return [ScoredItem(item, tuple(score(item, place) for place in range(len(item.responses)))) for item in rows.items]


def perfect(item: SuiteItem, place: int) -> float:
    """1 for a response that should win, 0 for one that should lose."""
    return float(place in {pair.better for pair in item.comparisons})


def inverted(item: SuiteItem, place: int) -> float:
    return -perfect(item, place)


def reward_bench_row(number: int, subset: str) -> Row:
    return {
        "prompt": f"Question {number}?",
        "chosen": f"Right answer {number}",
        "chosen_model": "human",
        "rejected": f"Wrong answer {number}",
        "rejected_model": "unknown",
        "subset": subset,
        "id": number,
    }


def reward_bench_2_row(number: int, subset: str) -> Row:
    return {
        "id": str(number),
        "prompt": f"Question {number}?",
        "chosen": [f"Right answer {number}"],
        "rejected": [f"Wrong answer {number}, {place}" for place in range(3)],
        "num_correct": 1,
        "num_incorrect": 3,
        "total_completions": 4,
        "models": ["a", "b", "c", "d"],
        "subset": subset,
        "additional_metadata": {"category": None},
    }


def ties_row(name: str, num_right: int, num_wrong: int = 2) -> Row:
    return {
        "id": name,
        "prompt": f"Name a colour of the rainbow ({name}).",
        "chosen": [f"right {place}" for place in range(num_right)],
        "rejected": [f"wrong {place}" for place in range(num_wrong)],
        "num_correct": num_right,
        "num_incorrect": num_wrong,
        "total_completions": num_right + num_wrong,
        "models": [],
        "subset": "Ties",
        "additional_metadata": None,
    }


def rm_bench_row(number: int, domain: str) -> Row:
    styles = ("concise", "detailed plain", "detailed markdown")
    return {
        "id": str(number),
        "prompt": f"Question {number}?",
        "chosen": [f"Right answer {number}, {style}" for style in styles],
        "rejected": [f"Wrong answer {number}, {style}" for style in styles],
        "domain": domain,
    }


def judge_bench_row(number: int, source: str, label: str = "A>B") -> Row:
    return {
        "pair_id": f"pair-{number}",
        "original_id": str(number),
        "source": source,
        "question": f"Question {number}?",
        "response_model": "gpt-4o-2024-05-13",
        "response_A": f"First answer {number}",
        "response_B": f"Second answer {number}",
        "label": label,
    }


def llmbar_row(number: int, subset: str, label: int = 2) -> Row:
    return {
        "subset": subset,
        "input": f"Instruction {number}",
        "output_1": f"First output {number}",
        "output_2": f"Second output {number}",
        "label": label,
    }


def vote_row(number: int, winner: str) -> Row:
    return {
        "id": f"vote-{number}",
        "prompt": f"Question {number}?",
        "response_a": f"First answer {number}",
        "response_b": f"Second answer {number}",
        "winner": winner,
    }


def truthfulqa_row(number: int, category: str = "Law") -> Row:
    return {
        "type": "Adversarial",
        "category": category,
        "question": f"Question {number}?",
        "best_answer": f"True answer {number}",
        "correct_answers": [f"True answer {number}"],
        "incorrect_answers": [f"False answer {number}", f"Another false answer {number}"],
        "source": "https://example.org",
    }


def pku_row(
    number: int, safe: tuple[bool, bool], *, better: int | None, safer: int | None, kind: str | None = None
) -> Row:
    return {
        "prompt": f"Question {number}?",
        "response_0": f"First answer {number}",
        "response_1": f"Second answer {number}",
        "is_response_0_safe": safe[0],
        "is_response_1_safe": safe[1],
        "better_response_id": better,
        "safer_response_id": safer,
        "kind": kind,
    }


def verbosity_row(number: int, kind: str = "llmbar Adversarial/Manual") -> Row:
    return {
        "id": f"v-{number}",
        "kind": kind,
        "prompt": [{"role": "user", "content": f"Question {number}?"}],
        "chosen": [{"role": "assistant", "content": f"Short {number}"}],
        "rejected": [{"role": "assistant", "content": f"A much longer answer {number}"}],
    }


def pair_row(number: int) -> Row:
    return {"prompt": f"Question {number}?", "chosen": f"Good answer {number}", "rejected": f"Bad answer {number}"}


ROWS: dict[str, list[Row]] = {
    "pairs": [pair_row(number) for number in range(6)],
    "reward_bench": [
        reward_bench_row(number, subset)
        for number, subset in enumerate(("alpacaeval-easy", "mt-bench-hard", "donotanswer", "math-prm", "hep-go") * 2)
    ],
    "reward_bench_2": [
        *(
            reward_bench_2_row(number, subset)
            for number, subset in enumerate(("Factuality", "Precise IF", "Math", "Safety", "Focus") * 2)
        ),
        *(ties_row(f"ref:{number}", 1) for number in range(2)),
        *(ties_row(f"tied:{number}", 3) for number in range(2)),
    ],
    "rm_bench": [
        rm_bench_row(number, domain)
        for number, domain in enumerate(("chat", "math", "code", "safety-refuse", "safety-response") * 2)
    ],
    "judge_bench": [
        judge_bench_row(number, source, label)
        for number, (source, label) in enumerate(
            (source, label)
            for source in ("mmlu-pro-law", "livebench-reasoning", "livebench-math", "livecodebench")
            for label in ("A>B", "B>A")
        )
    ],
    "llmbar": [
        llmbar_row(number, subset, 1 + number % 2)
        for number, subset in enumerate(
            ("Natural", "Adversarial/Neighbor", "Adversarial/GPTInst", "Adversarial/GPTOut", "Adversarial/Manual") * 2
        )
    ],
    "arena": [vote_row(number, winner) for number, winner in enumerate(("a", "b", "tie", "b", "a", "tie"))],
    "truthfulqa": [truthfulqa_row(number) for number in range(5)],
    "pku_safety": [
        pku_row(0, (True, False), better=1, safer=0),
        pku_row(1, (False, True), better=0, safer=1),
        pku_row(2, (False, False), better=0, safer=1),
        pku_row(3, (True, True), better=1, safer=None, kind="should-respond"),
        pku_row(4, (True, True), better=0, safer=1),
    ],
    "verbosity": [verbosity_row(number) for number in range(4)],
}
