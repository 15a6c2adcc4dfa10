"""A person opens the report: it stands alone, fits a phone, and the browser complains about nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from containers.contracts.names import OUTPUT_FOLDER, REPORT_HTML_FILE
from containers.stages.write_report import run as write_report
from tests.unit.factories.report.report_factory import make_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    context = make_run(tmp_path_factory.mktemp("run")).context()
    write_report(context)
    return context.work / OUTPUT_FOLDER / REPORT_HTML_FILE


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


def test_the_report_asks_nothing_of_the_network_and_the_console_stays_silent(page: Page, report: Path) -> None:
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(report.as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert said == []


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_report_never_scrolls_sideways(page: Page, report: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_reader_sees_the_verdict_the_figures_and_the_plots_at_once(page: Page, report: Path) -> None:
    page.goto(report.as_uri())
    assert page.get_by_text("passed", exact=False).first.is_visible()
    assert page.get_by_text("Reward model accuracy").first.is_visible()
    assert page.locator("svg").count() >= 10
