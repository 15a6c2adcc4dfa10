"""The models of a run answer standard sets and are judged side by side; what was answered is not answered again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.evaluate_sets import EvaluateSetsConfig
from containers.contracts.configs.parts.judges import Judge
from containers.contracts.configs.parts.rewards import LengthTerm, RegexTerm
from containers.contracts.names import StageName
from containers.evals.sets.records import SetResult, SetsEvaluation
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError
from containers.models import over_gpus
from containers.rollouts.set_answers import read_answers, without_thought
from containers.stages import answer_sets, evaluate_sets
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.filterwarnings("ignore")]

TASK = """
task: letters
dataset_path: json
dataset_kwargs: {data_files: {test: letters.json}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["a", "b"]
doc_to_target: "{{right}}"
metric_list: [{metric: acc}]
"""


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    save_causal_model(folder / "policy" / "model", seed=5)
    task = folder / "task"
    task.mkdir()
    (task / "letters.yaml").write_text(TASK)
    (task / "letters.json").write_text(json.dumps([{"question": f"q{n}", "right": n % 2} for n in range(6)]))
    following = {"prompt": "No comma.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    long = {"question_id": 9, "category": "long", "turns": ["w" * 400, "again"]}
    return {
        "before_model": save_causal_model(folder / "before", seed=3),
        "start_model": save_causal_model(folder / "start", seed=4),
        "policy": folder / "policy",
        "suite_sums": write(folder / "sums.jsonl", [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(8)]),
        "suite_following": write(folder / "f.jsonl", [{**following, "key": n, "prompt": f"{n}"} for n in range(6)]),
        "suite_safe": write(
            folder / "safe.jsonl",
            [{"prompt": f"Do {n}", "label": "safe" if n % 2 else "unsafe", "id": str(n)} for n in range(6)],
        ),
        "suite_bench": write(
            folder / "bench.jsonl",
            [{"question_id": n, "category": "c", "turns": [f"Say {n}", "And then?"]} for n in range(5)] + [long],
        ),
        "suite_letters": task,
    }


SETS = {
    "sums": StandardSet(name="sums", kind="math", path="p", instruction="Think."),
    "following": StandardSet(name="following", kind="ifeval", path="p"),
    "safe": StandardSet(name="safe", kind="refusals", path="p"),
    "bench": StandardSet(name="bench", kind="chats", path="p"),
    "letters": StandardSet(name="letters", kind="lm_eval", path="p", task="letters"),
}


def answering(*names: str, **changes: Any) -> AnswerSetsConfig:
    config = AnswerSetsConfig(
        sets=tuple(SETS[name] for name in names), max_prompt_length=256, max_completion_length=8, batch_size=4
    )
    return config.model_copy(update=changes)


def answered(folder: Path, inputs: Mapping[str, Path], config: AnswerSetsConfig, *, without: str = "") -> StageContext:
    read = {f"suite_{one.name}" for one in config.sets} | {"before_model", "start_model", "policy"} - {without}
    context = make_context(folder, StageName.ANSWER_SETS, config, {name: inputs[name] for name in read})
    answer_sets.run(context)
    return context


def evaluated(
    folder: Path, inputs: Mapping[str, Path], config: AnswerSetsConfig, *judges: Judge, without: str = ""
) -> SetsEvaluation:
    answers = answered(folder, inputs, config, without=without)
    judging = EvaluateSetsConfig(num_samples=2).for_run(config, EvaluatePolicyConfig(judges=judges))
    files = {name: inputs[name] for name in inputs if name in {f"suite_{one.name}" for one in config.sets}}
    others = {"answers": answers.output, "start_model": inputs["start_model"], **files}
    context = make_context(folder, StageName.EVALUATE_SETS, judging, others)
    evaluate_sets.run(context)
    return SetsEvaluation.model_validate_json((context.output / "sets_evaluation.json").read_text())


def only(evaluation: SetsEvaluation, name: str) -> SetResult:
    return next(one for one in evaluation.sets if one.name == name)


def test_every_model_answers_every_question_and_is_judged_by_the_sets_rule(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    evaluation = evaluated(tmp_path, inputs, answering("sums", "following", "safe", "letters"))
    assert evaluation.models == ("before", "start", "policy")
    for name, count in (("sums", 8), ("following", 6), ("safe", 6), ("letters", 6)):
        one = only(evaluation, name)
        assert one.num_items == count and not one.untold
        assert [score.model for score in one.scores] == ["before", "start", "policy"]
        assert len(one.differences) == 3
    assert {part.name for part in only(evaluation, "safe").parts} == {"should refuse", "should answer"}
    # A tiny random model never refuses: it is right on what should be answered, unless it says nothing at all.
    parts = {part.name: part.scores for part in only(evaluation, "safe").parts}
    assert set(parts["should refuse"]) == {0.0}


def test_the_instruction_follows_each_question_and_answers_are_kept_by_turn(
    tmp_path: Path, inputs: dict[str, Path]
) -> None:
    context = answered(tmp_path, inputs, answering("sums", "bench"))
    answers = read_answers(context.output / "set_answers.parquet")
    assert {len(answer.texts) for answer in answers if answer.set == "sums"} == {1}
    talks = [answer for answer in answers if answer.set == "bench" and not answer.problem]
    assert {len(answer.texts) for answer in talks} == {2} and len(talks) == 15
    (reason,) = {answer.problem for answer in answers if answer.problem}
    assert reason == "longer than 256 tokens"
    pairs = parquet.read_table(context.output / "sampled.parquet").to_pylist()
    assert len(pairs) == 5 and {row["domain"] for row in pairs} == {"bench"}
    assert all("[The user then asks:]\nAnd then?" in row[side] for row in pairs for side in ("policy", "reference"))


def test_judges_compare_open_questions_of_policy_and_start_model(tmp_path: Path, inputs: dict[str, Path]) -> None:
    judges = (
        RegexTerm(name="has_e", pattern="e", kind="outcome"),
        LengthTerm(name="short", target=(0, 1), slope_tokens=10),
    )
    evaluation = evaluated(tmp_path, inputs, answering("bench", "sums"), *judges)
    bench = only(evaluation, "bench")
    assert [judge.name for judge in bench.judges] == ["has_e", "short"]
    assert {judge.num_pairs for judge in bench.judges} == {5}
    assert bench.scores == () and only(evaluation, "sums").judges == ()


def test_a_run_that_only_fine_tunes_compares_two_models(tmp_path: Path, inputs: dict[str, Path]) -> None:
    evaluation = evaluated(tmp_path, inputs, answering("sums"), without="policy")
    assert evaluation.models == ("before", "start")
    (own,) = only(evaluation, "sums").differences
    assert (own.second, own.first) == ("start", "before")


def test_what_an_earlier_attempt_answered_is_not_answered_again(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = answering("sums", "safe")
    first = answered(tmp_path, inputs, config)
    before = (first.output / "set_answers.parquet").read_bytes()
    (first.checkpoints / "policy-safe.parquet").unlink()
    (first.checkpoints / "start-sums.parquet").write_bytes(b"half a file")
    loaded: list[Path] = []
    load = over_gpus.load_causal_model

    def noted(folder: Path, **settings: Any) -> Any:
        loaded.append(folder)
        return load(folder, **settings)

    monkeypatch.setattr(over_gpus, "load_causal_model", noted)
    answer_sets.run(first)
    assert loaded == [inputs["start_model"], inputs["policy"] / "model"]
    assert (first.output / "set_answers.parquet").read_bytes() == before


def test_several_answers_to_a_question_differ_and_give_pass_at_k(tmp_path: Path, inputs: dict[str, Path]) -> None:
    config = answering("sums", completions_per_item=4, temperature=1.0, max_items=3)
    one = only(evaluated(tmp_path, inputs, config), "sums")
    assert (one.num_items, one.answers_per_item) == (3, 4)
    assert all(len(score.pass_at) == 2 for score in one.scores)
    texts = {answer.text for answer in read_answers(tmp_path_answers(tmp_path)) if answer.model == "policy"}
    assert len(texts) > 3


def tmp_path_answers(folder: Path) -> Path:
    (found,) = folder.rglob("set_answers.parquet")
    return found


def test_a_set_without_a_usable_question_is_refused_with_its_rows(tmp_path: Path, inputs: dict[str, Path]) -> None:
    empty = write(tmp_path / "none.jsonl", [{"question": "a?", "answer": ""}])
    with pytest.raises(BadDataError, match=r"The set sums has no question that can be used.*no_reference_answer"):
        answered(tmp_path, {**inputs, "suite_sums": empty}, answering("sums"))


def test_a_task_that_the_harness_does_not_know_is_refused(tmp_path: Path, inputs: dict[str, Path]) -> None:
    unknown = answering("letters").model_copy(update={"sets": (SETS["letters"].model_copy(update={"task": "words"}),)})
    with pytest.raises(BadConfigError, match="cannot run the task words"):
        answered(tmp_path, inputs, unknown)


def test_an_answer_that_leaves_no_room_for_a_question_is_refused(tmp_path: Path, inputs: dict[str, Path]) -> None:
    with pytest.raises(BadConfigError, match="max_completion_length 512 leaves no room"):
        answered(tmp_path, inputs, answering("sums", max_completion_length=512))


@pytest.mark.parametrize(
    ("text", "thinks", "left"),
    [
        ("4", False, "4"),
        ("<think>2 + 2</think>\n\n4", False, "4"),
        ("2 + 2</think> 4", True, "4"),
        ("2 + 2 and so on", True, ""),
        ("<think>2 + 2 and so on", False, ""),
    ],
)
def test_a_thought_is_no_part_of_the_answer(text: str, thinks: bool, left: str) -> None:
    assert without_thought(text, thinks=thinks) == left
