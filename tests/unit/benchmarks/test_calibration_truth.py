"""The tables of the proof come from these functions; a few draws show that they still tell good from bad."""

import pytest

from benchmarks.truth.calibration import calibration_cells, calibration_table, polarity_cells, polarity_table


@pytest.mark.waits
def test_a_perfect_model_and_its_true_errors_lie_in_the_intervals() -> None:
    cells = {cell.setting: cell for cell in calibration_cells(7, 20, sizes=(200,))}
    perfect = cells["200 prompts, perfect"]
    assert perfect.true == 0 and perfect.plug_in > 0.05 > 2 * perfect.estimate
    assert cells["200 prompts, much too sure"].estimate == pytest.approx(0.153, abs=0.03)
    assert min(cell.coverage for cell in cells.values()) >= 0.8
    assert calibration_table(iter([perfect])).startswith("| setting | true | plug-in, ten bins |")


def test_the_interval_refuses_no_good_data_of_ten_rows() -> None:
    cells = {cell.setting: cell for cell in polarity_cells(7, 200, sizes=(10, 200))}
    good, bad = cells["10 rows, true agreement 60%"], cells["200 rows, true agreement 40%"]
    assert good.before > 0.1 > 0.02 > good.after
    assert bad.after > 0.6
    assert polarity_table(iter([good])).splitlines()[-1].startswith("| 10 rows, true agreement 60% | 1")
