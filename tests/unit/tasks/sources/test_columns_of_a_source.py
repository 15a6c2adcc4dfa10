"""Names of columns in a configuration: refused before anything is spent, part of the stage's key, seen in the check."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.hardware import GpuProfile
from containers.contracts.identity import SINGLE_BATCH, identity_key, stage_identity
from tasks.check_system import row_texts
from tasks.config.errors import ConfigError
from tasks.config.loading import load_run_config
from tasks.config.sources import DatasetSource, whole_filter_config
from tasks.plan.run_plan import draft_plan
from tasks.sources.errors import UnusableSourceError
from tasks.sources.peek import PROMPTS
from tasks.sources.resolve import probe_dataset
from tasks.sources.row_samples import SHOWN_CHARACTERS, dataset_samples, prompt_samples

ROW = {"frage": "Name a colour.", "good": "Red.", "bad": "Blue."}
COLUMNS = {"prompt": "frage", "chosen": "good", "rejected": "bad"}


def source(folder: Path, *rows: Any, **keys: Any) -> DatasetSource:
    path = folder / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return DatasetSource.model_validate({"train": str(path), **keys})


def key_of(dataset: DatasetSource) -> str:
    config = whole_filter_config(FilterDatasetConfig(), dataset, ())
    profile = GpuProfile(name="cpu", num_gpus=0, precision="float32")
    return identity_key(stage_identity(config, seed=1, inputs=(), code_digest="x", profile=profile, batch=SINGLE_BATCH))


def test_the_check_reads_with_the_names_and_shows_the_row_whole(tmp_path: Path) -> None:
    dataset = source(tmp_path, ROW, columns=COLUMNS)
    assert "TRL preference, 1 rows" in probe_dataset(dataset, token=None).found
    (text,) = dataset_samples(dataset, token=None)
    assert text.splitlines() == [
        f"dataset.train: {tmp_path / 'rows.jsonl'}, row 1, read as TRL preference (prompt is frage, chosen is good, "
        "rejected is bad), strength 1",
        "  user: Name a colour.",
        "  chosen: Red.",
        "  rejected: Blue.",
    ]


def test_a_name_that_the_file_lacks_is_refused_by_the_check_with_a_near_one(tmp_path: Path, project: Path) -> None:
    dataset = source(tmp_path, ROW, columns={**COLUMNS, "prompt": "fragen"})
    with pytest.raises(UnusableSourceError, match=r"Columns found: frage, good, bad\. Did you mean `frage`\?"):
        probe_dataset(dataset, token=None)
    config = load_run_config(project / "configs/runs/demo.yaml").config
    assert row_texts(config.model_copy(update={"dataset": dataset})) == ()


def test_the_check_shows_a_prompt_as_the_policy_gets_it_with_its_answer(tmp_path: Path) -> None:
    row = {"frage": "1 + 1?", "loesung": "Two. #### 2", "difficulty": "1/4"}
    prompts = source(tmp_path, row, columns={"prompt": "frage", "answer": "loesung"})
    config = FilterPromptsConfig(prompt_template="{prompt} Think first.")
    assert "prompts, 1 rows" in probe_dataset(prompts, token=None, kind=PROMPTS).found
    (text,) = prompt_samples(prompts, config, token=None)
    assert text.splitlines() == [
        f"prompts.train: {tmp_path / 'rows.jsonl'}, row 1, read as prompts (prompt is frage, answer is loesung), "
        "difficulty 0.25",
        "  user: 1 + 1? Think first.",
        "  reference answer: 2",
    ]


def test_a_prompt_set_without_a_named_column_is_refused_with_a_near_one(tmp_path: Path) -> None:
    prompts = source(tmp_path, {"frage": "1 + 1?"}, columns={"prompt": "fragen"})
    with pytest.raises(UnusableSourceError, match=r"Columns found: frage\. Did you mean `frage`\?"):
        probe_dataset(prompts, token=None, kind=PROMPTS)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"promt": "frage"}, "`promt` is a column of no format. Did you mean `prompt`?"),
        ({"prompt": ""}, "`prompt` has an empty name"),
        ({"chosen": "good", "rejected": "good"}, "2 of our names are given to the file's column `good`"),
        ({"prompt": 3}, "valid string"),
        (["prompt"], "valid dictionary"),
    ],
)
def test_names_that_make_no_sense_are_refused_without_the_file(columns: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DatasetSource.model_validate({"train": "x.jsonl", "columns": columns})
    assert said in str(caught.value)


def test_names_and_pairs_of_rankings_are_part_of_the_stages_key(tmp_path: Path) -> None:
    plain, named = source(tmp_path, ROW), source(tmp_path, ROW, columns=COLUMNS)
    reordered = source(tmp_path, ROW, columns=dict(reversed(COLUMNS.items())))
    all_pairs = source(tmp_path, ROW, ranking_pairs="all")
    assert len({key_of(plain), key_of(named), key_of(all_pairs)}) == 3
    assert key_of(named) == key_of(reordered)
    parts = [{"name": "a", "train": "a.jsonl"}, {"name": "b", "train": "b.jsonl"}]
    mixed = [DatasetSource.model_validate({"mixture": [parts[0], {**parts[1], **keys}]})
             for keys in ({}, {"columns": COLUMNS}, {"ranking_pairs": "adjacent"})]  # fmt: skip
    assert len({key_of(dataset) for dataset in mixed}) == 3


@pytest.mark.parametrize("key", [{"columns": COLUMNS}, {"ranking_pairs": "all"}])
def test_they_belong_to_the_sources_of_a_mixture_not_beside_them(key: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is set beside a mixture"):
        DatasetSource.model_validate({"mixture": [{"name": "a", "train": "a.jsonl"}], **key})


YAML = """
run: {{name: named, output_dir: {folder}/out}}
gpu_profile: cpu
dataset:
  train: {folder}/rows.jsonl
  columns: {{prompt: frage, chosen: good}}
build_base_model: {{}}
"""


def test_a_file_and_the_command_line_give_names_together_and_what_is_written_down_loads_again(tmp_path: Path) -> None:
    source(tmp_path, *({**ROW, "frage": f"Question {number}?"} for number in range(400)))
    path = tmp_path / "run.yaml"
    path.write_text(YAML.format(folder=tmp_path))
    loaded = load_run_config(path, overrides=["dataset.columns.rejected=bad"], profile=None)
    assert loaded.config.dataset.columns == COLUMNS
    assert draft_plan(loaded.config).mistakes == ()
    path.write_text(loaded.yaml_text)
    assert load_run_config(path, overrides=[], profile=None).config.dataset == loaded.config.dataset


def test_rankings_with_more_than_one_pair_a_row_are_not_counted_by_their_rows(tmp_path: Path) -> None:
    ranking = {"prompt": "Name a colour.", "answers": ["a", "b", "c"], "ranks": [1, 2, 3]}
    source(tmp_path, *[ranking] * 60)
    path = tmp_path / "run.yaml"
    path.write_text(YAML.format(folder=tmp_path).replace("columns: {prompt: frage, chosen: good}", ""))
    few = draft_plan(load_run_config(path, overrides=[], profile=None).config)
    more = draft_plan(load_run_config(path, overrides=["dataset.ranking_pairs=all"], profile=None).config)
    assert any("at most 60 pairs" in mistake.text for mistake in few.mistakes)
    assert not any("at most" in mistake.text for mistake in more.mistakes)


def test_one_row_of_each_format_of_each_source_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    orca = {"system": "", "question": "Name a colour.", "chosen": "Red.", "rejected": "Blue."}
    arena = {"prompt": "Name a colour.", "response_a": "Red.", "response_b": "Blue.", "winner": "b"}
    for name, row in (("1", orca), ("2", arena), ("3", orca)):
        (tmp_path / "a" / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(ROW) + "\n")
    parts = [
        {"name": "a", "train": str(tmp_path / "a")},
        {"name": "b", "train": str(tmp_path / "b.jsonl"), "columns": COLUMNS},
    ]
    texts = list(dataset_samples(DatasetSource.model_validate({"mixture": parts}), token=None))
    assert [text.partition("read as ")[2].split(",")[0].split(" (")[0] for text in texts] == [
        *("Orca DPO", "arena", "TRL preference")
    ]
    assert "  chosen: Blue." in texts[1]
    assert texts[2].startswith("dataset.mixture b: train: ")


def test_the_first_usable_row_is_shown_else_the_first_with_its_reason(tmp_path: Path) -> None:
    broken = {**ROW, "good": None}
    (text,) = dataset_samples(source(tmp_path, "", "{oops", broken, ROW, columns=COLUMNS), token=None)
    assert ", row 4, " in text and "chosen: Red." in text
    (text,) = dataset_samples(source(tmp_path, "", broken, broken, columns=COLUMNS), token=None)
    assert text.endswith("none of the first rows can be read; this one is response_not_text (None).")
    (text,) = dataset_samples(source(tmp_path, {**ROW, "good": "Blue."}, columns=COLUMNS), token=None)
    assert "it will be dropped as equal_responses" in text


def test_a_row_shown_cannot_steer_the_terminal_or_flood_it(tmp_path: Path) -> None:
    row = {**ROW, "good": "\x1b[2J" + "x" * 100_000, "bad": "one\n  two"}
    (text,) = dataset_samples(source(tmp_path, row, columns=COLUMNS), token=None)
    assert "\x1b" not in text and len(text) < SHOWN_CHARACTERS + 500
    assert "of 100,004 characters" in text and "  rejected: one\n      two" in text


def test_unpaired_completions_are_shown_as_the_pair_that_they_make(tmp_path: Path) -> None:
    lines = [{"prompt": "A?", "completion": text, "label": label} for text, label in (("bad", False), ("good", True))]
    (text,) = dataset_samples(source(tmp_path, *lines), token=None)
    assert "read as unpaired (KTO)" in text and "chosen: good" in text
    (text,) = dataset_samples(source(tmp_path, lines[0]), token=None)
    assert "no_completion_of_other_label" in text


def test_rows_of_a_reader_are_not_shown_since_it_runs_in_the_stage(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def read_rows(path):\n    yield {}\n")
    dataset = source(tmp_path, ROW, reader=str(tmp_path / "mine.py"))
    assert list(dataset_samples(dataset, token=None)) == [
        "dataset: its reader runs in the stage only, so no row is shown here."
    ]


def test_what_the_stage_is_told_is_not_set_by_a_user(tmp_path: Path) -> None:
    source(tmp_path, ROW)
    path = tmp_path / "run.yaml"
    path.write_text(YAML.format(folder=tmp_path))
    with pytest.raises(ConfigError, match=r"filter_dataset\.reading: is what the stage is told"):
        load_run_config(path, overrides=["filter_dataset.reading.ranking_pairs=all"])
