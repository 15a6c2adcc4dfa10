"""`rlhf score` behind the wall: each row has its score or its reason, and a model that is none gives no number."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomForSequenceClassification,
    PreTrainedModel,
)

from containers.contracts.configs.score_file import ScoreFileConfig, ScoreFileSpec, read_spec
from containers.contracts.names import EVENTS_FILE, ToolName
from containers.contracts.outcome import Metric
from containers.contracts.spec import StageSpec
from containers.evals.score_statistics import score_statistics, write_score_statistics
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, DivergedError, MissingPrerequisiteError
from containers.harness.recorder import Recorder
from containers.launch.arguments import docker_spec
from containers.scoring import scorer
from containers.stages import score_file
from tests.unit.factories.adapter_factory import make_adapter
from tests.unit.factories.reward_model_factory import transformers_scores
from tests.unit.factories.spec_factory import make_spec
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model, tiny_tokenizer

pytestmark = pytest.mark.stages

Row = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reward_model(tmp_path_factory.mktemp("model"))


def _context(tmp_path: Path, model: Path, rows: Sequence[Any], **config: Any) -> StageContext:
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    work = tmp_path / "work"
    inputs = {"reward_model": model, "rows": file}
    # A spec is made for a stage of the pipeline, and then told to be that of score_file.
    fields = make_spec(work, "write_report", {"stage": "write_report"}, inputs).model_dump()  # type: ignore[arg-type]
    spec = ScoreFileSpec.model_validate(
        {**fields, "stage": ToolName.SCORE_FILE, "config": {"stage": "score_file", **config}}
    )
    context = StageContext(spec=spec, work=work, recorder=Recorder(work / EVENTS_FILE))
    context.output.mkdir(parents=True)
    return context


def _score(tmp_path: Path, model: Path, rows: Sequence[Any], **config: Any) -> tuple[list[Row], dict[str, Metric]]:
    context = _context(tmp_path, model, rows, **config)
    metrics = score_file.run(context)
    lines = (context.output / "scores.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], {metric.name: metric for metric in metrics}


def _pair(number: int) -> Row:
    """The model likes one of the two forms better; it is the chosen one of two in three pairs."""
    sides = (f"Yes, {number}.", "No! " * (number % 5 + 1))
    chosen, rejected = sides if number % 3 else sides[::-1]
    return {"prompt": f"Question {number}?", "chosen": chosen, "rejected": rejected}


def _conversation(prompt: str, response: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def test_both_sides_of_each_pair_have_the_score_that_plain_transformers_gives(tmp_path: Path, model: Path) -> None:
    rows = [_pair(number) for number in range(9)]
    found, metrics = _score(tmp_path, model, rows)
    wanted = transformers_scores(
        model, [_conversation(row["prompt"], row[side]) for row in rows for side in ("chosen", "rejected")]
    )
    scores = [score for line in found for score in (line["score_chosen"], line["score_rejected"])]
    assert scores == pytest.approx(wanted, abs=1e-4)
    assert [line["row"] for line in found] == list(range(1, 10))
    for line in found:
        assert line["margin"] == line["score_chosen"] - line["score_rejected"]
        assert line["correct"] is (line["margin"] > 0)
    right = sum(line["correct"] for line in found) / 9
    accuracy = metrics["accuracy"]
    assert (accuracy.value, accuracy.count) == (pytest.approx(right), 9)
    assert accuracy.ci_low is not None and 0 < accuracy.ci_low < right < 1
    assert metrics["score_mean"].value == pytest.approx(sum(wanted) / 18, abs=1e-4)
    assert metrics["score_max"].value == pytest.approx(max(wanted), abs=1e-4)


def test_ties_are_said_and_count_neither_as_right_nor_as_wrong(tmp_path: Path, model: Path) -> None:
    votes = [
        {"prompt": "q", "response_a": "x", "response_b": "y", "winner": winner} for winner in ("a", "tie", "b", "tie")
    ]
    found, metrics = _score(tmp_path, model, votes)
    assert [line.get("tie") for line in found] == [None, "label", None, "label"]
    assert [line["correct"] is None for line in found] == [False, True, False, True]
    assert (metrics["ties"].value, metrics["accuracy"].count, metrics["accuracy"].value) == (2, 2, 0.5)


def test_pairs_of_one_prompt_do_not_narrow_the_interval(tmp_path: Path, model: Path) -> None:
    def width(rows: list[Row]) -> float:
        (tmp_path / str(len(rows))).mkdir()
        _, metrics = _score(tmp_path / str(len(rows)), model, rows)
        accuracy = metrics["accuracy"]
        assert accuracy.ci_low is not None and accuracy.ci_high is not None
        return accuracy.ci_high - accuracy.ci_low

    rows = [_pair(number) for number in range(12)]
    assert width(rows * 4) == pytest.approx(width(rows), rel=0.15)


def test_the_best_of_several_responses_is_named_by_its_place(tmp_path: Path, model: Path) -> None:
    responses = ["One.", "Two two.", "Three three three.", "Two two."]
    (found,), metrics = _score(tmp_path, model, [{"prompt": "q", "responses": responses}])
    wanted = transformers_scores(model, [_conversation("q", response) for response in responses])
    assert found["scores"] == pytest.approx(wanted, abs=1e-4)
    assert found["best"] == wanted.index(max(wanted))
    assert found["scores"][1] == pytest.approx(found["scores"][3], abs=1e-5)
    assert "accuracy" not in metrics


def test_rows_that_cannot_be_scored_stay_in_their_place_with_the_reason(tmp_path: Path, model: Path) -> None:
    rows = [
        {"prompt": "q", "response": "x"},
        {"prompt": "q", "response": ""},
        {"prompt": "q", "response": "long " * 200},
        "{broken",
        {"prompt": "q", "response": "y"},
    ]
    found, metrics = _score(tmp_path, model, rows)
    assert [(line["row"], line.get("not_scored")) for line in found] == [
        (1, None),
        (2, "empty_response"),
        (3, "too_long"),
        (4, "invalid_json"),
        (5, None),
    ]
    assert found[2]["seen"] == "1,022 tokens, at most 512"
    counts = {name: metric.value for name, metric in metrics.items() if metric.unit == "rows"}
    assert counts == {
        "rows": 5,
        "scored": 2,
        "not_scored/empty_response": 1,
        "not_scored/too_long": 1,
        "not_scored/invalid_json": 1,
    }


def test_one_response_that_is_too_long_leaves_the_row_out_and_is_named(tmp_path: Path, model: Path) -> None:
    rows = [{"prompt": "q", "responses": ["x", "y"]}, {"prompt": "q", "responses": ["x", "y " * 60, "z"]}]
    found, _ = _score(tmp_path, model, rows, max_length=64)
    assert found[1] == {"row": 2, "not_scored": "too_long", "seen": "response 2 of 3: 142 tokens, at most 64"}


def test_many_rows_keep_their_order_over_chunks_and_batches(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_file, "_CHUNK_ROWS", 4)
    rows: list[Any] = [{"prompt": f"q{number}", "response": "x" * (1 + 37 * number % 50)} for number in range(11)]
    rows[6] = ""
    found, _ = _score(tmp_path, model, rows, batch_size=3)
    assert [line["row"] for line in found] == list(range(1, 12))
    conversations = [_conversation(row["prompt"], row["response"]) for row in rows if row]
    scores = [line["score"] for line in found if "score" in line]
    assert scores == pytest.approx(transformers_scores(model, conversations), abs=1e-4)


def test_a_template_that_drops_one_answer_leaves_that_row_out(tmp_path: Path) -> None:
    model = save_reward_model(tmp_path / "model")
    template = (model / "chat_template.jinja").read_text()
    hiding = "{% if messages[0]['content'] == 'hide' %}{% set messages = messages[:1] %}{% endif %}"
    refusing = "{% if 'bad' in messages[0]['content'] %}{{ raise_exception('no bad words') }}{% endif %}"
    (model / "chat_template.jinja").write_text(hiding + refusing + template)
    rows = [
        {"prompt": "show", "response": "x"},
        {"prompt": "hide", "response": "x"},
        {"prompt": "bad", "response": "x"},
    ]
    found, _ = _score(tmp_path, model, rows)
    assert [line.get("not_scored") for line in found] == [None, "template_drops_response", "template_refuses"]
    assert "no bad words" in found[2]["seen"]


def test_a_file_of_which_no_row_can_be_scored_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    rows = ["{", "", {"prompt": "q"}]
    with pytest.raises(BadDataError, match=r"Not one of the 2 rows .* invalid_json 1, blank_line 1\. The first: row 1"):
        _score(tmp_path, tmp_path / "nowhere", rows[:2])


def test_a_limit_below_every_row_is_told_with_its_count(tmp_path: Path, model: Path) -> None:
    with pytest.raises(BadDataError, match=r"Not one of the 3 rows .* too_long 3"):
        _score(tmp_path, model, [_pair(number) for number in range(3)], max_length=8)


def test_a_limit_above_the_models_positions_is_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(BadConfigError, match=r"max_length 1,000 is more than the 512 positions"):
        _score(tmp_path, model, [_pair(1)], max_length=1000)


def _another_family(folder: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_classifier_of_another_build_is_refused_by_its_name(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tiny_tokenizer()), num_labels=1, **sizes)
    folder = _another_family(tmp_path / "bert", BertForSequenceClassification(config))
    with pytest.raises(MissingPrerequisiteError, match=r"is a BertFor.*, which has no `score` head"):
        _score(tmp_path, folder, [_pair(1)])


def test_a_model_that_names_no_positions_wants_to_be_told_a_length(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    config = BloomConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        n_layer=1,
        n_head=4,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = _another_family(tmp_path / "bloom", BloomForSequenceClassification(config))
    with pytest.raises(BadConfigError, match=r"Bloom.* names no number of positions.*--max-length TOKENS"):
        _score(tmp_path, folder, [_pair(1)])
    (row,), _ = _score(tmp_path / "told", folder, [_pair(1)], max_length=256)
    assert isinstance(row["score_chosen"], float)


def test_a_language_model_has_no_score(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match=r"no trained reward model: score\.weight"):
        _score(tmp_path, save_causal_model(tmp_path / "causal"), [_pair(1)])


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = save_reward_model(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["score.weight"][0, 0] = torch.nan
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(DivergedError, match=r"score\.weight is not finite"):
        _score(tmp_path, model, [_pair(1)])


def test_a_score_that_is_not_finite_names_its_row(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores_of = scorer.padded_batch_scores

    def overflowing(classifier: Any, batches: list[list[list[int]]]) -> list[list[float]]:
        return [
            [float("inf") if len(ids) > 60 else score for ids, score in zip(batch, scores, strict=True)]
            for batch, scores in zip(batches, scores_of(classifier, batches), strict=True)
        ]

    monkeypatch.setattr(scorer, "padded_batch_scores", overflowing)
    rows = [{"prompt": "q", "response": "x"}, {"prompt": "q", "response": "x" * 70}, {"prompt": "q", "response": "z"}]
    with pytest.raises(DivergedError, match=r"Row 2: 1 of 1 scores are not finite"):
        _score(tmp_path, model, rows)


def test_normalised_scores_use_the_statistics_that_were_saved_with_the_model(tmp_path: Path) -> None:
    model = save_reward_model(tmp_path / "model")
    write_score_statistics(model, score_statistics([1.0, 5.0], scores_of="two conversations"))
    rows = [_pair(1), {"prompt": "q"}]
    found, _ = _score(tmp_path, model, rows, normalise=True)
    both = [found[0]["score_chosen"], found[0]["score_rejected"]]
    assert found[0]["normalised"] == pytest.approx([(score - 3) / 2 for score in both])


@pytest.mark.parametrize(
    ("saved", "problem"),
    [("", "No such file"), ("{}", "it holds something else"), ("flat", "a standard deviation of 0")],
)
def test_normalised_scores_without_usable_statistics_are_refused(tmp_path: Path, saved: str, problem: str) -> None:
    model = save_reward_model(tmp_path / "model")
    if saved == "flat":
        write_score_statistics(model, score_statistics([1.0, 1.0], scores_of="two conversations"))
    elif saved:
        (model / "score_statistics.json").write_text(saved)
    with pytest.raises(MissingPrerequisiteError, match=problem):
        _score(tmp_path, model, [_pair(1)], normalise=True)


def test_an_adapter_scores_as_its_merged_copy(tmp_path: Path) -> None:
    made = make_adapter(tmp_path / "made")
    rows = [_pair(number) for number in range(5)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    adapted, _ = _score(tmp_path / "a", made.with_base(tmp_path / "together"), rows)
    merged, _ = _score(tmp_path / "b", made.merged, rows)
    assert [line["margin"] for line in adapted] == pytest.approx([line["margin"] for line in merged], abs=1e-4)


def test_the_spec_comes_back_from_its_file_as_what_it_was(tmp_path: Path, model: Path) -> None:
    context = _context(tmp_path, model, [_pair(1)], max_length=64)
    spec = read_spec(context.spec.model_dump_json().encode())
    assert isinstance(spec, ScoreFileSpec)
    assert isinstance(spec.config, ScoreFileConfig)
    assert spec == context.spec
    inside = read_spec(docker_spec(spec).model_dump_json().encode())
    assert isinstance(inside, ScoreFileSpec)
    assert {item.path for item in inside.inputs} == {"/rlhf/inputs/reward_model", "/rlhf/inputs/rows"}
    stage = make_spec(tmp_path, "write_report", {"stage": "write_report"}, {})  # type: ignore[arg-type]
    assert type(read_spec(stage.model_dump_json().encode())) is StageSpec
