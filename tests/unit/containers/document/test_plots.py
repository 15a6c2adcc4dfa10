"""A plot in Prefect is read by people who decide by it: whole, small, nothing invented, nothing that breaks a page."""

import base64
import math
import re
from xml.etree import ElementTree

from containers.contracts.names import StageName
from containers.document.markdown import markdown
from containers.document.model import Plots
from containers.report.curves import CURVE_PLOTS, Curves, curve_plots
from containers.report.figures import accuracy_plot, curve_plot
from containers.report.plots import training_plots
from tasks.prefect_sync.progress import running_section
from tasks.store.events import MetricPoint
from tests.unit.factories.report.report_records import metric


def svgs(text: str) -> list[str]:
    """The pictures inside the Markdown, checked to be XML."""
    found = [base64.b64decode(data).decode() for data in re.findall(r"data:image/svg\+xml;base64,([^)]+)\)", text)]
    for picture in found:
        ElementTree.fromstring(picture)  # noqa: S314 - our own
    return found


def drawn(points: tuple[tuple[int, float], ...]) -> str:
    plot = curve_plot("Loss", [("training", points)], unit="nats", salt="loss")
    assert plot is not None
    (picture,) = svgs(markdown(Plots((plot,))))
    return picture


def test_a_picture_is_whole_readable_on_a_dark_page_and_named_by_a_heading() -> None:
    plot = curve_plot("Loss", [("training", ((1, 2.0), (50, 0.5)))], unit="nats", salt="loss")
    assert plot is not None
    text = markdown(Plots((plot,)))
    (picture,) = svgs(text)
    assert text.startswith("**Loss**\n\n![Loss](data:") and "First to last: 2.00 → 0.500." in text
    assert 'fill="#fcfcfb"' in picture and "optimizer step" in picture and "var(--" not in picture


def test_points_that_are_not_finite_are_left_out_and_a_flat_curve_is_drawn() -> None:
    assert "nan" not in drawn(((1, 1.0), (2, math.nan), (3, 1.0), (4, math.inf))).lower()


def test_no_curve_is_no_plot() -> None:
    assert curve_plot("Loss", [("training", ())], unit="nats", salt="loss") is None
    assert training_plots(StageName.WRITE_REPORT, Curves({"loss": ((1, 1.0),)})) == ()


def test_a_night_of_steps_stays_small() -> None:
    assert len(drawn(tuple((step, 1.0 / step) for step in range(1, 30_001)))) < 60_000


def test_foreign_names_break_neither_picture_nor_page() -> None:
    attack = '</text><script>alert(1)</script> ]( "&'
    plot = accuracy_plot(attack, [(attack, metric("m", 0.9, "fraction", None, 8))], salt="attack")
    assert plot is not None
    text = markdown(Plots((plot,)))
    assert "<script" not in text + "".join(svgs(text))


def test_a_running_stage_shows_its_two_most_telling_curves_and_the_last_value_of_each() -> None:
    points = dict.fromkeys(("reward", "kl", "entropy"), ((1, 0.5), (2, 0.25)))
    latest = {"kl": MetricPoint("kl", 0.25, 0, 1200)}
    text = markdown(running_section(StageName.TRAIN_POLICY, "1,200 of 5,000 steps", Curves(points), latest))
    assert [plot.title for plot in CURVE_PLOTS[StageName.TRAIN_POLICY][:2]] == ["Reward", "KL to the reference"]
    assert len(svgs(text)) == 2 and "**Reward**" in text and "**KL to the reference**" in text
    assert "| KL | 0.250 | 1,200 |" in text
    assert svgs(markdown(running_section(StageName.TRAIN_POLICY, "", Curves({"kl": ((1, 1.0),)}), latest))) == []


def test_several_rewards_have_one_plot_together_without_their_statistics() -> None:
    names = (
        "reward",
        "value_math",
        "value_math_std",
        "value_tone_std",
        "value_tone_std_std",
        "value_math_same_fraction",
    )
    plots = curve_plots(StageName.TRAIN_POLICY, Curves(dict.fromkeys(names, ((1, 0.5),))))
    assert [plot.series for plot in plots if "each reward" in plot.title] == [
        (("math", "value_math"), ("tone_std", "value_tone_std"))
    ]
    alone = curve_plots(StageName.TRAIN_POLICY, Curves(dict.fromkeys(names[:3], ((1, 0.5),))))
    assert alone == CURVE_PLOTS[StageName.TRAIN_POLICY]
