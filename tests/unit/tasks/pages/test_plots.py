"""A plot in Prefect is read by people who decide by it: right scale, nothing invented, nothing that breaks the page."""

import base64
import math
import re
from xml.etree import ElementTree

from containers.contracts.names import StageName
from tasks.pages.plots import Curve, bar_plot, curve_plots, latest_figures, line_plot, plotted_names
from tasks.store.events import MetricPoint


def svg(markdown: str) -> str:
    """The picture inside the Markdown, checked to be XML."""
    (encoded,) = re.findall(r"!\[.*\]\(data:image/svg\+xml;base64,([^)]+)\)", markdown)
    text = base64.b64decode(encoded).decode()
    ElementTree.fromstring(text)  # noqa: S314 - our own
    return text


def drawn(picture: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'points="([^"]+)"', picture)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def test_a_curve_runs_from_corner_to_corner_and_up_is_more() -> None:
    ((start, end),) = drawn(svg(line_plot("Loss", [Curve("loss", ((1, 0.0), (50, 2.0)))])))
    assert (start, end) == ((64.0, 186.0), (624.0, 34.0))


def test_points_that_are_not_finite_are_left_out_and_a_flat_curve_is_drawn() -> None:
    ((first, second),) = drawn(svg(line_plot("KL", [Curve("kl", ((1, 1.0), (2, math.nan), (3, 1.0), (4, math.inf)))])))
    assert first[1] == second[1]


def test_no_curve_with_two_points_is_no_plot() -> None:
    assert line_plot("Loss", [Curve("loss", ((1, 1.0),)), Curve("eval", ())]) == ""
    assert bar_plot("Rows", []) == ""


def test_a_night_of_steps_stays_small_and_keeps_its_ends() -> None:
    markdown = line_plot("Loss", [Curve("loss", tuple((step, 1.0 / step) for step in range(1, 30_001)))])
    assert len(markdown) < 8000
    ((*_, last),) = drawn(svg(markdown))
    assert last[0] == 624.0


def test_foreign_names_break_neither_picture_nor_page() -> None:
    attack = '</text><script>alert(1)</script> ]( "&'
    picture = svg(bar_plot(attack, [(attack, 3), ("tie", 1)]))
    assert "<script" not in picture
    assert 'width="1.0"' not in picture


def test_the_bars_are_in_proportion() -> None:
    widths = [
        float(width) for width in re.findall(r'width="([\d.]+)" height="16"', svg(bar_plot("t", [("a", 8), ("b", 2)])))
    ]
    assert widths == [360.0, 90.0]


def test_each_training_shows_the_curves_that_people_ask_for() -> None:
    points = [MetricPoint(key, float(step), 0, step) for step in (1, 2) for key in ("reward", "kl", "entropy")]
    plots = curve_plots(StageName.TRAIN_POLICY, points)
    assert [line[2:8] for line in plots.split("\n\n")] == ["Reward", "KL to "]
    assert plotted_names(StageName.TRAIN_POLICY) == {"reward", "kl"}
    assert curve_plots(StageName.WRITE_REPORT, points) == ""


def test_the_latest_figures_say_at_which_step() -> None:
    latest = {"eval_loss": MetricPoint("eval_loss", 0.25, 0, 1200)}
    assert "| Eval loss | 0.250 | 1,200 |" in latest_figures(latest)
    assert latest_figures({}) == ""
