"""LLMBar: following the instruction against reading well, by the means of its five sets."""

from pathlib import Path

import pytest

from containers.contracts.registries import BENCHMARKS
from containers.evals.suites.llmbar import LLMBAR
from containers.harness.errors import BadDataError
from tests.unit.factories.suite_factory import INTERVALS, llmbar_row, perfect, read, scored, write


def test_the_label_counts_outputs_from_one(tmp_path: Path) -> None:
    rows = read("llmbar", tmp_path, [llmbar_row(0, "Natural", 1), llmbar_row(1, "Natural", 2)])
    assert [item.responses[0] for item in rows.items] == ["First output 0", "Second output 1"]


def test_the_score_is_the_mean_of_the_five_sets_and_adversarial_of_four(tmp_path: Path) -> None:
    """Natural and Neighbor right, two rows of GPTInst of which none is right, GPTOut and Manual wrong."""
    sets = ("Natural", "Neighbor", "GPTInst", "GPTInst", "GPTOut", "Manual")
    rows = read("llmbar", tmp_path, [llmbar_row(*row) for row in enumerate(sets)])
    right = {"Natural", "Adversarial/Neighbor"}
    figures = LLMBAR.judge(scored(rows, lambda item, place: float((item.subset in right) == (place == 0))), INTERVALS)
    assert figures.score is not None
    assert figures.score.value == pytest.approx(2 / 5)
    assert {section.name: section.value for section in figures.sections} == {"Natural": 1.0, "Adversarial": 0.25}
    assert figures.missing == ()


def test_equal_scores_count_half(tmp_path: Path) -> None:
    rows = read("llmbar", tmp_path, [llmbar_row(0, "Natural"), llmbar_row(1, "Adversarial/Manual")])
    figures = LLMBAR.judge(scored(rows, lambda item, place: 2.0), INTERVALS)
    assert figures.score is not None
    assert figures.score.value == 0.5
    assert figures.missing == ("Adversarial/Neighbor", "Adversarial/GPTInst", "Adversarial/GPTOut")


def test_preference_rows_say_the_same_as_the_published_columns(tmp_path: Path) -> None:
    published = read("llmbar", tmp_path, [llmbar_row(0, "Natural", 2)]).items[0]
    row = {
        "id": "n-0",
        "subset": "Natural",
        "prompt": [{"role": "user", "content": "Instruction 0"}],
        "chosen": [{"role": "assistant", "content": "Second output 0"}],
        "rejected": [{"role": "assistant", "content": "First output 0"}],
    }
    rows = read("llmbar", tmp_path, [row])
    assert rows.items[0].prompt == published.prompt
    assert rows.items[0].responses == published.responses
    figures = LLMBAR.judge(scored(rows, perfect), INTERVALS)
    assert [section.name for section in figures.sections] == ["Natural"]


def test_the_folders_of_the_published_files_name_the_subsets(tmp_path: Path) -> None:
    for number, folder in enumerate(("Natural", "Adversarial/Neighbor", "Adversarial/Manual")):
        (tmp_path / folder).mkdir(parents=True)
        row = {name: value for name, value in llmbar_row(number, "").items() if name != "subset"}
        write(tmp_path / folder, [row], name="dataset.jsonl")
    rows = BENCHMARKS["llmbar"].read(tmp_path)
    assert {item.subset for item in rows.items} == {"Natural", "Adversarial/Neighbor", "Adversarial/Manual"}


def test_without_a_column_or_a_folder_for_it_the_subset_is_missed(tmp_path: Path) -> None:
    row = {name: value for name, value in llmbar_row(0, "").items() if name != "subset"}
    with pytest.raises(BadDataError, match=r"Missing columns: subset\. Found: input, output_1, output_2, label\."):
        read("llmbar", tmp_path, [row])


@pytest.mark.parametrize("label", [0, 3, True, None, "A", [1]])
def test_another_label_is_left_out(label: object, tmp_path: Path) -> None:
    rows = read("llmbar", tmp_path, [{**llmbar_row(0, "Natural"), "label": label}, llmbar_row(1, "Natural")])
    assert rows.left_out == {"label_unknown": 1}
