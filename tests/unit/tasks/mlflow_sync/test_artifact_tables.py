"""People read samples and funnels on the run's page; a damaged file must cost its table only."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from containers.contracts.funnel import Funnel, FunnelStep
from containers.contracts.outcome import Metric
from containers.contracts.records import Message, SamplePrediction
from containers.evals.sets.records import ModelScore, SetResult, SetSample, SetsEvaluation
from tasks.mlflow_sync.files import tables_of


def write_funnel(folder: Path) -> None:
    funnel = Funnel(
        sources=("train.jsonl",),
        rows_read=10,
        steps=(FunnelStep(reason="tie", rows_in=10, rows_out=7),),
        train_pairs=5,
        validation_pairs=2,
        policy_train_prompts=0,
        policy_eval_prompts=0,
    )
    (folder / "funnel.json").write_text(funnel.model_dump_json())


def test_a_funnel_becomes_one_row_per_filter(tmp_path: Path) -> None:
    write_funnel(tmp_path)
    (table,) = tables_of(tmp_path)
    assert (table.name, table.rows) == ("funnel", (("Tie", 10, 3, 0.3, 7),))


def test_samples_show_the_dialogue_and_the_margin(tmp_path: Path) -> None:
    sample = SamplePrediction(
        prompt=(Message(role="user", content="Hi"), Message(role="assistant", content="Yes?")),
        chosen="a",
        rejected="b",
        score_chosen=1.5,
        score_rejected=-0.5,
    )
    (tmp_path / "sample_predictions.json").write_text(json.dumps([sample.model_dump(mode="json")]))
    (table,) = tables_of(tmp_path)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["prompt"] == "user: Hi\n\nassistant: Yes?"
    assert row["margin"] == 2.0


def test_standard_sets_are_a_table_and_what_was_lost_on_each_is_another(tmp_path: Path) -> None:
    lost = SetSample(prompt="2 + 2?", wanted="4", start="4", policy="5")
    score = ModelScore(
        model="start",
        score=Metric(name="s", value=0.5, unit="fraction", count=2),
        ended=Metric(name="e", value=1.0, unit="fraction", count=2),
    )
    sets = tuple(
        SetResult(
            name=name, kind="math", title="t", measure="m", source="s", rows_read=2, num_items=2, scores=(score,),
            lost=(lost,),
        )
        for name in ("one", "two")
    )  # fmt: skip
    evaluation = SetsEvaluation(models=("start",), confidence=0.95, sets=sets)
    (tmp_path / "sets_evaluation.json").write_text(evaluation.model_dump_json())
    assert [table.name for table in tables_of(tmp_path)] == ["standard_sets", "one_lost", "two_lost"]


def test_long_tables_of_completions_are_cut(tmp_path: Path) -> None:
    pq.write_table(pa.table({"step": list(range(1000)), "completion": ["x"] * 1000}), tmp_path / "completions.parquet")
    (table,) = tables_of(tmp_path)
    assert table.columns == ("step", "completion")
    assert [row[0] for row in table.rows] == list(range(200))


def test_a_damaged_file_costs_only_its_own_table(tmp_path: Path) -> None:
    write_funnel(tmp_path)
    (tmp_path / "completions.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "sample_predictions.json").write_text('[{"prompt": 1}]')
    (tmp_path / "policy_evaluation.json").symlink_to("/etc/hostname")
    assert [table.name for table in tables_of(tmp_path)] == ["funnel"]
