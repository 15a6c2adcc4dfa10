"""Memory is planned for what really goes through the model: packs, reference models, reward models of one's own."""

import json
from pathlib import Path

import pytest

from containers.contracts.names import StageName
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.plan.run_plan import plan_run
from tasks.plan.text import figure_text
from tests.unit.factories.plan_runs import figure_of, pair, run_on, stage_of
from tests.unit.factories.run_files import write_run

PRODUCTION = "configs/runs/helpsteer3-qwen3-8b.yaml"
REWARD_MODEL = "train_reward_model"


@pytest.fixture
def production(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    return project / PRODUCTION


def computed_at_a_time(loaded: LoadedConfig) -> str:
    return figure_text(figure_of(plan_run(loaded), StageName.TRAIN_REWARD_MODEL, "computed at a time"))


def activations(loaded: LoadedConfig) -> float:
    return figure_of(plan_run(loaded), StageName.TRAIN_REWARD_MODEL, "activations").value or 0


def test_packs_of_a_gpu_hold_what_its_padded_rows_would(production: Path) -> None:
    loaded = load_run_config(production)
    assert computed_at_a_time(loaded) == "at most 8,192 tokens (packed pairs, each prompt once)"
    padded = load_run_config(production, overrides=["train_reward_model.pack=false"])
    assert activations(padded) == activations(loaded)
    assert computed_at_a_time(padded) == "at most 8,192 tokens (padded rows: pack is false)"


def test_a_budget_of_tokens_is_what_memory_is_reckoned_with(production: Path) -> None:
    half = load_run_config(production, overrides=["train_reward_model.pack_tokens=4096"])
    assert activations(half) * 2 == pytest.approx(activations(load_run_config(production)))
    # One pair may have twice max_length, and is computed alone.
    little = load_run_config(production, overrides=["train_reward_model.pack_tokens=100"])
    assert activations(little) == activations(half)


def test_a_penalty_on_the_whole_batch_keeps_padded_rows(tmp_path: Path) -> None:
    loaded = run_on(tmp_path, [pair(10, 2, 3)] * 150, train_reward_model={"zero_sum_penalty": 0.1, "lora": {"r": 8}})
    assert computed_at_a_time(loaded).endswith(
        "(padded rows: zero_sum_penalty is about a whole batch, whose packs are computed one by one)"
    )


def test_packs_of_a_cpu_are_small(tmp_path: Path) -> None:
    # 8 pairs a step of 1,312 tokens each, a tenth more for safety; packs of 2,048.
    assert computed_at_a_time(run_on(tmp_path, [pair(300, 500, 500)] * 150)).startswith("at most 2,048 tokens")
    # A step has no more than 8 pairs of 27 tokens, or 30 with the tenth.
    assert computed_at_a_time(run_on(tmp_path, [pair(5, 5, 5)] * 150)).startswith("at most 240 tokens")


def judge(folder: Path, *, layers: int) -> Path:
    """A folder with the config.json of a reward model of that depth and width 1,024."""
    folder.mkdir()
    shape = {"model_type": "qwen3", "num_hidden_layers": layers, "hidden_size": 1024, "intermediate_size": 3072}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
    (folder / "config.json").write_text(json.dumps({**shape, **heads}))
    return folder


def test_a_reference_reward_model_is_in_the_filters_memory_work_and_time(tmp_path: Path) -> None:
    pairs = [pair(100, 20, 30)] * 150
    without = plan_run(run_on(tmp_path, pairs))
    polarity = {"reference_reward_model": {"path": str(judge(tmp_path / "judge", layers=28))}, "num_pairs": 100}
    plan = plan_run(run_on(tmp_path, pairs, filter_dataset={"polarity": polarity}))
    planned, before = stage_of(plan, StageName.FILTER_DATASET), stage_of(without, StageName.FILTER_DATASET)
    # It runs on the CPU in float32: 596M parameters and the score head.
    weights = figure_of(plan, StageName.FILTER_DATASET, "reference reward model").value
    assert weights == 4 * 596_050_944
    assert planned.host_memory is not None and planned.host_memory.value is not None
    assert planned.host_memory.value > weights + 0.7 * 1024**3
    assert plan.host_memory_bytes == planned.host_memory.value > without.host_memory_bytes
    assert planned.work is not None and (planned.work.value or 0) > 1e13
    assert planned.time is not None and before.time is not None
    assert (planned.time.value or 0) > (before.time.value or 0) + 60


def test_a_reference_that_judges_for_hours_is_a_warning(production: Path) -> None:
    judge = "{hub_id: Qwen/Qwen3-8B, revision: main}"
    found: dict[int, list[str]] = {}
    for num_pairs in (25, 200):
        asked = [f"reference_reward_model={judge}", f"num_pairs={num_pairs}"]
        loaded = load_run_config(production, overrides=[f"filter_dataset.polarity.{setting}" for setting in asked])
        found[num_pairs] = [item for item in plan_run(loaded).warnings if item.startswith("filter_dataset.")]
    assert found[25] == []
    assert found[200] == [
        "filter_dataset.polarity.reference_reward_model: it judges on the CPU, which takes about 7.9 h. Lower "
        "polarity.num_pairs, or name a smaller model."
    ]


def test_a_reference_of_unknown_shape_is_said_to_be_missing_from_the_time(tmp_path: Path) -> None:
    polarity = {"reference_reward_model": {"path": str(tmp_path / "nowhere")}}
    plan = plan_run(run_on(tmp_path, [pair(10, 2, 3)] * 150, filter_dataset={"polarity": polarity}))
    time = stage_of(plan, StageName.FILTER_DATASET).time
    assert time is not None and "without the reference reward model, whose shape is not known here" in figure_text(time)


@pytest.mark.parametrize("place", ["", "merged", "base"])
def test_a_reward_model_of_ones_own_counts_with_its_own_size(tmp_path: Path, place: str) -> None:
    pairs = [pair(10, 2, 3)] * 150
    trained = plan_run(run_on(tmp_path, pairs))
    folder = tmp_path / "own"
    if place:
        folder.mkdir()
    judge(folder / place if place else folder, layers=28)
    plan = plan_run(run_on(tmp_path, pairs, reward_model={"path": str(folder)}))
    for stage in (StageName.EVALUATE_REWARD_MODEL, StageName.TRAIN_POLICY):
        own, small = (figure_of(item, stage, "reward model").value or 0 for item in (plan, trained))
        assert own > 2.2e9 > 1e8 > small


def test_a_reward_model_of_unknown_size_is_left_out_and_no_mistake(tmp_path: Path) -> None:
    loaded = run_on(tmp_path, [pair(10, 2, 3)] * 150, reward_model={"path": str(tmp_path / "nowhere")})
    plan = plan_run(loaded)
    assert stage_of(plan, StageName.EVALUATE_REWARD_MODEL).memory == ()
    assert "reward model" not in [figure.name for figure in stage_of(plan, StageName.TRAIN_POLICY).memory]


def test_suites_are_counted_by_the_size_of_their_files_and_missing_ones_are_named(tmp_path: Path) -> None:
    pairs = [pair(100, 20, 30)] * 150
    (tmp_path / "plain.jsonl").write_text("x" * 8000)
    (tmp_path / "packed.jsonl.gz").write_bytes(b"x" * 1000)
    places = ("plain.jsonl", "packed.jsonl.gz", "not_here.jsonl")
    suites = [{"name": f"suite-{place[:2]}", "path": str(tmp_path / place)} for place in places]
    without = plan_run(run_on(tmp_path, pairs))
    plan = plan_run(run_on(tmp_path, pairs, evaluate_reward_model={"suites": suites}))
    figure = figure_of(plan, StageName.EVALUATE_REWARD_MODEL, "tokens of the suites")
    assert figure.value == (8000 + 4 * 1000) / 4
    planned, before = (stage_of(item, StageName.EVALUATE_REWARD_MODEL) for item in (plan, without))
    assert planned.work and before.work and planned.time
    shape_weights = 2 * (4 * 64 * 64 + 3 * 64 * 128)
    assert (planned.work.value or 0) - (before.work.value or 0) == 2 * shape_weights * 3000 * (
        1 + 8
    )  # edits of all their pairs
    assert planned.time.note == "on an idle machine, without 1 of the suites, whose files are not here"


def test_the_judge_on_a_gpu_is_in_the_evaluations_memory(production: Path) -> None:
    plan = plan_run(load_run_config(production))
    parts = {figure.name: figure for figure in stage_of(plan, StageName.EVALUATE_REWARD_MODEL).memory}
    assert list(parts) == ["reward model", "activations", "CUDA context"]
    assert parts["reward model"].value == 2 * 7_568_409_600
    # 8 conversations of 2,048 tokens, less than the budget of such a GPU.
    assert parts["activations"].note == "16,384 tokens at a time"


def test_scoring_takes_the_configured_budget_but_never_less_than_a_conversation(tmp_path: Path) -> None:
    def tokens(**settings: int) -> str:
        run = write_run(tmp_path, evaluate_reward_model={"max_length": 2048, **settings})
        return figure_of(plan_run(load_run_config(run)), StageName.EVALUATE_REWARD_MODEL, "activations").note

    assert tokens() == "2,048 tokens at a time"
    assert tokens(batch_tokens=4096) == "4,096 tokens at a time"
    assert tokens(batch_tokens=4096, batch_size=1) == "2,048 tokens at a time"
