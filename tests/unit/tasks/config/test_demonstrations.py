"""Demonstrations are a source of their own, which train_sft learns in place of pairs."""

from pathlib import Path

import pytest

from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.names import StageName
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import write_run

SET = {"demonstrations": {"train": "talks.jsonl"}, "train_sft": {}}
ALONE = {
    **SET,
    "dataset": None,
    "train_reward_model": None,
    "train_policy": None,
}


def mistakes(folder: Path, **sections: object) -> list[str]:
    with pytest.raises(InvalidConfigError) as refused:
        load_run_config(write_run(folder, **{**SET, **sections}))
    return [str(mistake) for mistake in refused.value.mistakes]


def test_a_run_may_fine_tune_on_demonstrations_and_do_nothing_else(tmp_path: Path) -> None:
    config = load_run_config(write_run(tmp_path, **ALONE)).config
    assert config.stages == (
        StageName.CHECK_SYSTEM,
        StageName.FILTER_DEMONSTRATIONS,
        StageName.BUILD_BASE_MODEL,
        StageName.TRAIN_SFT,
        StageName.WRITE_REPORT,
    )


def test_the_stage_is_told_how_the_rows_are_read_and_what_judges(tmp_path: Path) -> None:
    source = {"train": "talks.jsonl", "columns": {"question": "q", "answer": "a"}}
    suites = {"suites": [{"name": "own", "path": "suite.jsonl"}]}
    loaded = load_run_config(write_run(tmp_path, **{**SET, "demonstrations": source, "evaluate_reward_model": suites}))
    config = loaded.config.stage_config(StageName.FILTER_DEMONSTRATIONS)
    assert isinstance(config, FilterDemonstrationsConfig)
    assert config.reading.columns == {"question": "q", "answer": "a"}
    assert [suite.name for suite in config.suites] == ["own"]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"train_sft": None}, "demonstrations: only train_sft learns them, and there is no section `train_sft`."),
        ({"train_sft": {"completions": "both"}}, "train_sft.completions: `both` is about pairs, and train_sft learns"),
        (
            {"filter_demonstrations": {"validation_fraction": 0}},
            "filter_demonstrations.validation_fraction: 0 leaves no conversation to choose a checkpoint by",
        ),
        (
            {"dataset": None, "train_reward_model": None, "train_policy": {"beta": 0.1}},
            "train_policy: is set, and a run with demonstrations alone has no prompts for a policy. Name `prompts`",
        ),
        (
            {**ALONE, "train_dpo": {}},
            "train_dpo: trains on preferences, and there is no `dataset`. Name one, or leave train_dpo out.",
        ),
        ({"demonstrations": {"train": "talks.jsonl", "columns": {"anser": "a"}}}, "Did you mean `answer`?"),
        ({"filter_demonstrations": {"prompt_template": "no place"}}, "holds {prompt} 0 times. Write it once"),
    ],
)
def test_what_contradicts_itself_is_refused_with_what_to_do(
    tmp_path: Path, sections: dict[str, object], expected: str
) -> None:
    found = mistakes(tmp_path, **sections)
    assert any(expected in mistake for mistake in found), found
