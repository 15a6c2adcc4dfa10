"""Side by side, each against the first: figures that a person can work out, and chance told from skill."""

from pathlib import Path

import pytest

from containers.contracts.names import CERTIFICATE_FILE
from containers.document.html import page_html
from containers.document.model import Text
from tasks.certificates.comparison import CertificateTable, compare_certificates
from tasks.certificates.files import CertificateError, read_certificates
from tasks.certificates.page import comparison_note, comparison_page, comparison_table
from tests.unit.factories.report.certificate_artifact import write_certificate


def second_model(table: CertificateTable) -> str:
    """What the first suite's row says of the second model against the first."""
    cell = comparison_table(table).rows[0][2]
    assert isinstance(cell, Text)
    return cell.sub


def test_a_model_is_set_against_the_first_on_the_items_of_both(tmp_path: Path) -> None:
    first = write_certificate(tmp_path / "first", {"test": [1, 1, -1, -1, -1, -1, -1, -1, -1, -1]})
    second = write_certificate(tmp_path / "second", {"test": [1, -1, 1, 1, 1, 1, 1, 1, 1, 1, 1]})
    table = compare_certificates(read_certificates([first, second]))
    cell = table.suites[0].cells[1]
    found = cell.against_first
    assert found is not None
    assert found.difference.value == pytest.approx(0.9 - 0.2)
    assert (found.num_better, found.num_worse, cell.other_items) == (8, 1, 1)
    assert found.p_value == pytest.approx(20 / 512)  # 2 * (1 + 9) / 2**9
    assert "better" in second_model(table)
    assert "1 items of only one left out" in second_model(table)


def test_equal_models_differ_by_nothing_beyond_chance(tmp_path: Path) -> None:
    folders = [write_certificate(tmp_path / name, {"test": [1, -1, 0, 1]}) for name in ("a", "b")]
    table = compare_certificates(read_certificates(folders))
    found = table.suites[0].cells[1].against_first
    assert found is not None
    assert (found.difference.value, found.p_value) == (0, 1)
    assert "no difference beyond chance" in second_model(table)


def test_votes_on_one_prompt_are_no_further_evidence_that_a_model_is_better(tmp_path: Path) -> None:
    """Better on one prompt of two, which was asked sixteen times: sixteen items, and still one prompt."""
    first = write_certificate(tmp_path / "first", {"arena": [-1] * 16 + [1] * 16}, items_per_prompt=16)
    second = write_certificate(tmp_path / "second", {"arena": [1] * 32}, items_per_prompt=16)
    table = compare_certificates(read_certificates([first, second]))
    found = table.suites[0].cells[1].against_first
    assert found is not None
    assert (found.num_prompts, found.num_better, found.num_worse, found.p_value) == (2, 1, 0, 1)
    assert (found.difference.value, found.difference.ci_low, found.difference.ci_high) == (0.5, -1, 1)
    text = second_model(table)
    assert "no difference beyond chance" in text and "(n = 32 on 2 prompts)" in text
    assert "prompts" in comparison_note(table)


def test_items_that_repeat_leave_the_paired_interval_as_wide_as_it_was(tmp_path: Path) -> None:
    margins = {"first": [1, -1, -1, 1, -1] * 8, "second": [1, 1, -1, -1, 1] * 8}
    intervals = []
    for copies in (1, 5):
        folders = [
            write_certificate(
                tmp_path / f"{name}-{copies}",
                {"arena": [margin for margin in found for _ in range(copies)]},
                items_per_prompt=copies,
            )
            for name, found in margins.items()
        ]
        against = compare_certificates(read_certificates(folders)).suites[0].cells[1].against_first
        assert against is not None
        intervals.append((against.difference.ci_low, against.difference.ci_high, against.p_value))
    assert intervals[1] == pytest.approx(intervals[0])


def test_a_suite_that_only_one_model_was_judged_by_is_shown_and_not_compared(tmp_path: Path) -> None:
    first = write_certificate(tmp_path / "first", {"test": [1, 1]})
    second = write_certificate(tmp_path / "second", {"test": [1, 1], "llmbar": [1, -1]})
    table = compare_certificates(read_certificates([first, second]))
    llmbar = next(row for row in table.suites if row.name == "llmbar")
    assert llmbar.cells[0].score is None
    assert llmbar.cells[0].remark == "not judged by it"
    assert llmbar.cells[1].against_first is None
    assert llmbar.cells[1].remark == "first was not judged by it"


def test_other_data_under_one_name_is_said(tmp_path: Path) -> None:
    first = write_certificate(tmp_path / "first", {"test": [1, 1]})
    second = write_certificate(tmp_path / "second", {"test": [1, 1]}, digest="sha256:other")
    table = compare_certificates(read_certificates([first, second]))
    assert "other data" in table.suites[0].cells[1].remark


def test_of_many_comparisons_some_are_chance_and_the_note_says_how_many(tmp_path: Path) -> None:
    suites = {f"suite-{number}": [1, -1] for number in range(10)}
    folders = [write_certificate(tmp_path / name, suites) for name in ("a", "b", "c")]
    assert "Of 20 such comparisons of equal models, 1.0 give p < 0.05" in comparison_note(
        compare_certificates(read_certificates(folders))
    )


def test_a_certificate_is_found_by_run_folder_artifact_and_file(tmp_path: Path) -> None:
    artifact = write_certificate(tmp_path / "run" / "artifacts" / "evaluate_reward_model", {"test": [1]})
    for place, name in (
        (tmp_path / "run", "run"),
        (artifact, "evaluate_reward_model"),
        (artifact / CERTIFICATE_FILE, "evaluate_reward_model"),
    ):
        assert read_certificates([place])[0].name == name


def test_every_place_without_a_certificate_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / CERTIFICATE_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(CertificateError) as raised:
        read_certificates([tmp_path / "empty", tmp_path / "damaged", tmp_path / "gone"])
    for part in ("empty holds no certificate.json", "damaged/certificate.json cannot be read", "gone holds no"):
        assert part in str(raised.value)


def test_a_model_beside_itself_is_refused(tmp_path: Path) -> None:
    folder = write_certificate(tmp_path / "first", {"test": [1]})
    with pytest.raises(CertificateError, match="named twice"):
        read_certificates([folder, folder])


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    folders = [write_certificate(tmp_path / name / "rm", {"test": [1]}) for name in ("a", "b")]
    assert [item.name for item in read_certificates(folders)] == [str(folder) for folder in folders]


def test_scores_that_are_gone_are_named(tmp_path: Path) -> None:
    folders = [write_certificate(tmp_path / name, {"test": [1]}) for name in ("a", "b")]
    (folders[1] / "item_scores_test.parquet").unlink()
    with pytest.raises(CertificateError, match=r"b/item_scores_test\.parquet, the scores behind b's certificate"):
        compare_certificates(read_certificates(folders))


def test_the_page_shows_every_model_and_runs_nothing_that_a_name_holds(tmp_path: Path) -> None:
    hostile = "<script>alert(1)<:script>"
    folders = [
        write_certificate(tmp_path / hostile, {"test": [1, -1]}),
        write_certificate(tmp_path / "other", {"test": [1, 1]}),
    ]
    page = page_html(comparison_page(compare_certificates(read_certificates(folders))))
    assert "<script" not in page
    assert page.count("<figure>") == 1
    assert "other" in page
