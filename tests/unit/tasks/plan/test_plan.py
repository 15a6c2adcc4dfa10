"""`rlhf plan` must say the truth before anything is spent, and refuse what would run all night and save nothing."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from containers.contracts.names import StageName
from tasks.config.errors import ConfigError
from tasks.config.loading import load_run_config
from tasks.plan.figures import Figure, StagePlan, duration_text
from tasks.plan.inputs.data import count_rows
from tasks.plan.run_plan import draft_plan, plan_run
from tasks.plan.text import figure_text, render_plan
from tests.unit.factories.plan_runs import pair, run_by_ranks, run_on, small_run, stage_of
from tests.unit.factories.run_files import write_run

PRODUCTION = "configs/runs/helpsteer3-qwen3-8b.yaml"


@pytest.fixture
def production(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    return project / PRODUCTION


def figure_of(stage: StagePlan, name: str) -> Figure:
    return next(figure for figure in (*stage.figures, *stage.memory) if figure.name == name)


@pytest.mark.parametrize(
    ("profile", "cut"),
    [
        ("7x48gb", "112 = 2 per device x 7 rank(s) x 8 accumulated"),
        ("4x48gb", "96 = 2 per device x 4 rank(s) x 12 accumulated"),
        ("1x48gb", "16 = 2 per device x 1 rank(s) x 8 accumulated"),
        ("1x80gb", "16 = 4 per device x 1 rank(s) x 4 accumulated"),
        ("8x48gb", "128 = 2 per device x 8 rank(s) x 8 accumulated"),
        ("8x80gb", "128 = 4 per device x 8 rank(s) x 4 accumulated"),
        ("8x141gb", "128 = 8 per device x 8 rank(s) x 2 accumulated"),
    ],
)
def test_the_production_run_fits_every_profile_of_its_size(production: Path, profile: str, cut: str) -> None:
    plan = plan_run(load_run_config(production, profile=profile))
    text = render_plan(plan)
    assert cut in text
    assert "174.6M = 174,592,000 (exact; 2.31%)" in text
    for stage in plan.stages:
        assert sum(figure.value or 0 for figure in stage.memory) < plan.profile.gpu_memory_gib * 1024**3
    assert "MORE THAN THE GPU HAS" not in text


def test_the_plan_says_when_checkpoints_are_written_and_what_the_host_must_hold(production: Path) -> None:
    plan = plan_run(run_by_ranks(production))
    lines = [" ".join(line.split()) for line in render_plan(plan).splitlines()]
    assert "saves every 18 steps, and at each evaluation that is the best so far" in lines
    assert "saves every 20 steps" in lines
    how = "7 program(s), the weights' files, which all share, and a copy to save"
    assert f"host memory 51.5 GiB (estimated; {how})" in lines
    assert round(plan.host_memory_bytes / 1024**3, 1) == 51.5
    whole = draft_plan(load_run_config(production, overrides=["train_reward_model.lora=null"]).config)
    assert whole.host_memory_bytes > 7 * 4 * 7_568_409_600


def test_ninety_percent_of_the_english_rows_at_112_are_180_steps(production: Path) -> None:
    stage = stage_of(plan_run(load_run_config(production)), StageName.TRAIN_REWARD_MODEL)
    assert figure_text(figure_of(stage, "steps")) == "180 steps (estimated)"
    assert figure_text(figure_of(stage, "examples an epoch")) == "20,142 pairs (estimated)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (720, "12 min"), (11_520, "3.2 h"), (91_780_000, "1,062 days")]
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_policy_without_prompts_of_its_own_uses_those_of_the_reward_model(tmp_path: Path) -> None:
    plan = plan_run(small_run(tmp_path, filter_dataset={"policy_prompt_fraction": 0}))
    filtered = stage_of(plan, StageName.FILTER_DATASET)
    assert figure_text(figure_of(filtered, "policy training prompts")) == "at most 125 prompts"
    assert figure_text(figure_of(filtered, "policy evaluation prompts")) == "at most 20 prompts"


def test_counted_rows_are_upper_bounds_through_every_stage(tmp_path: Path) -> None:
    plan = plan_run(small_run(tmp_path))
    filtered = stage_of(plan, StageName.FILTER_DATASET)
    assert {figure.name: figure_text(figure) for figure in filtered.figures} == {
        "rows read": "at most 125 rows",
        "training pairs": "at most 100 pairs",
        "validation pairs": "at most 20 pairs",
        "policy training prompts": "at most 22 prompts",
        "policy evaluation prompts": "at most 3 prompts",
    }
    assert figure_text(figure_of(stage_of(plan, StageName.TRAIN_REWARD_MODEL), "steps")) == "at most 13 steps"
    assert figure_text(figure_of(stage_of(plan, StageName.TRAIN_POLICY), "steps")) == "30 steps (exact)"


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ("train", "so nothing of the data is in this plan"),
        ("validation", "so nothing of it is in this plan"),
    ],
)
def test_data_that_are_not_here_are_named_once_at_the_end(tmp_path: Path, absent: str, said: str) -> None:
    loaded = small_run(tmp_path)
    assert plan_run(loaded).absent == ""
    (tmp_path / f"{absent}.jsonl").unlink()
    plan = plan_run(loaded)
    assert plan.warnings == (), "a run is told by its system check"
    warning = f"WARNING: dataset.{absent}: {tmp_path}/{absent}.jsonl does not exist here, {said}. "
    text = render_plan(plan)
    assert f"{warning}`rlhf check` and `rlhf run` refuse it.\n" in text
    assert text.count("does not exist") == 1


def test_data_that_is_not_there_yet_is_unknown_and_no_mistake(tmp_path: Path) -> None:
    plan = plan_run(load_run_config(write_run(tmp_path)))
    steps = figure_of(stage_of(plan, StageName.TRAIN_REWARD_MODEL), "steps")
    assert figure_text(steps) == "unknown before the data is read"
    text = render_plan(plan)
    assert "In all but what is unknown: " in text
    assert "Not in these sums, since their time is unknown: filter_dataset, train_reward_model, " in text


def test_a_model_of_unknown_size_can_be_given_its_config(tmp_path: Path) -> None:
    loaded = small_run(tmp_path, build_base_model=None, base_model={"path": str(tmp_path / "nowhere")})
    text = render_plan(plan_run(loaded))
    assert "pass --model-config" in text
    assert "unknown: the model's shape is not known here" in text
    assert "unknown: the reward model's shape is not known here" in text
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "vocab_size": 100,
            }
        )
    )
    stage = stage_of(plan_run(loaded, model_config=config), StageName.TRAIN_REWARD_MODEL)
    assert figure_of(stage, "parameters").origin == "estimated"


def test_a_model_that_does_not_fit_is_shouted_at(production: Path) -> None:
    loaded = load_run_config(production, overrides=["train_reward_model.lora=null"])
    text = render_plan(draft_plan(loaded.config))
    assert "of 48 GiB: MORE THAN THE GPU HAS" in text
    assert "WARNING: train_reward_model: 119.0 GiB per GPU are estimated, and profile `7x48gb` has 48." in text
    assert "7.57B = 7,568,409,600 (exact; 100.00%)" in text


def test_what_is_cached_is_asked_for_every_stage(tmp_path: Path) -> None:
    text = render_plan(plan_run(small_run(tmp_path), cached=lambda stage: f"cached {stage.value}"))
    assert "2. filter_dataset   [cached filter_dataset]" in text
    assert "1. check_system   [always runs]" in text


def test_every_number_says_what_it_is_worth(production: Path) -> None:
    plan = plan_run(load_run_config(production))
    for stage in plan.stages:
        costs = (item for item in (stage.host_memory, stage.disk, stage.work, stage.time) if item)
        for figure in (*stage.figures, *stage.memory, *costs):
            assert any(word in figure_text(figure) for word in ("exact", "estimated", "at most", "unknown"))


def test_rows_are_counted_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n{}")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as stream:
        stream.write("{}\n" * 3)
    counts = [count_rows(tmp_path / name) for name in ("a.jsonl", "b.jsonl.gz", "missing.jsonl")]
    assert [count.value if count else None for count in counts] == [2, 3, None]
    (tmp_path / "damaged.jsonl.gz").write_bytes(b"\x1f\x8b\x08no")
    assert count_rows(tmp_path / "damaged.jsonl.gz") is None
    (tmp_path / "blank.jsonl.gz").write_bytes(gzip.compress(b"{}\n" + b"\n" * 2_000_000))
    assert count_rows(tmp_path / "blank.jsonl.gz") is None


def test_rows_of_parquet_and_of_a_folder_are_counted(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [1, 2, 3, 4]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("{}\n")
    (tmp_path / "notes.txt").write_text("not rows\n")
    count = count_rows(tmp_path)
    assert count is not None and count.value == 5


def test_a_missing_tokenizer_file_is_said_so(tmp_path: Path) -> None:
    loaded = small_run(tmp_path, tokenizer_file="none.tiktoken", build_base_model={"vocabulary_size": None})
    with pytest.raises(ConfigError, match=r"tokenizer_file: .*none\.tiktoken does not exist"):
        plan_run(loaded)
    # The system check says it in a row of its own, beside all others.
    assert draft_plan(loaded.config).disk_bytes == 0


@pytest.mark.waits
def test_planning_imports_neither_torch_nor_prefect(project: Path, tmp_path: Path) -> None:
    run_on(tmp_path, [pair(100, 20, 30)] * 150)
    code = (
        "import sys; from tasks.config.loading import load_run_config; from tasks.plan.run_plan import plan_run; "
        f"plan_run(load_run_config({PRODUCTION!r})); "
        f"plan = plan_run(load_run_config({str(tmp_path / 'run.yaml')!r})); "
        "assert 'tokenizer.json' in plan.lengths[1]; "
        "print([name for name in ('torch', 'transformers', 'trl', 'datasets', 'prefect', 'mlflow', 'docker') "
        "if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stderr
