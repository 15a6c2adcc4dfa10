"""The plan of compute_reference: a forward of each pair, and none of it in train_dpo."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.names import StageName
from tasks.config.loading import load_run_config
from tasks.plan.figures import StagePlan
from tasks.plan.run_plan import plan_run
from tests.unit.factories.run_files import write_run


def planned(folder: Path, **dpo: Any) -> dict[StageName, StagePlan]:
    training = {"schedule": {"max_steps": 4, "eval_steps": 2}, "max_length": 128, **dpo}
    rows = [{"prompt": f"Is {number} even?", "chosen": "Yes, it is.", "rejected": "No."} for number in range(400)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"train": str(folder / "rows.jsonl")}
    loaded = load_run_config(write_run(folder, dataset=source, train_policy=None, train_dpo=training))
    return {stage.stage: stage for stage in plan_run(loaded).stages}


def test_kto_computes_twice_as_many_completions_and_a_baseline_in_each_step(tmp_path: Path) -> None:
    dpo, kto = planned(tmp_path, lora={"r": 4}), planned(tmp_path, lora={"r": 4}, loss="kto")
    work = [stages[StageName.COMPUTE_REFERENCE].work for stages in (dpo, kto)]
    assert work[0] is not None and work[1] is not None and work[0].value
    assert work[1].value == pytest.approx(2 * work[0].value)
    trained = [stages[StageName.TRAIN_DPO].work for stages in (dpo, kto)]
    assert trained[0] is not None and trained[1] is not None
    assert (trained[1].value or 0) > (trained[0].value or 0) > 0


def test_a_model_that_is_trained_whole_is_held_in_float32_and_simpo_needs_no_reference(tmp_path: Path) -> None:
    whole = planned(tmp_path, lora=None)[StageName.COMPUTE_REFERENCE]
    trained = planned(tmp_path, lora=None)[StageName.TRAIN_DPO]
    (weights,) = [figure.value for figure in whole.memory if figure.name == "reference"]
    (parameters,) = [figure.value for figure in trained.figures if figure.name == "parameters"]
    assert weights == 4 * (parameters or 0)
    assert StageName.COMPUTE_REFERENCE not in planned(tmp_path, loss="simpo")
