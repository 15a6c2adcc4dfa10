"""Prefect's pages as a person with a mouse uses them; what is awaited is what the page shows."""

import base64
import io
import re
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from uuid import UUID

from PIL import Image
from playwright.sync_api import BrowserContext, Locator, Page, expect

# A page that loads while the machine trains.
PAGE_LIMIT_MS = 60_000
_CHOICE = ".p-select-button__icon"
_CHOSEN = ".p-select-button"
# Until a server has written down an answer, beside trainings that use the same disk and cores.
_ANSWER_LIMIT_MS = 180_000
# How often a person presses a button that a busy server answers with an error.
_MOST_PRESSES = 3
_GRAPH = ".run-graph"
# The green of a node whose task is completed, and how far a drawn pixel may be from it.
_COMPLETED, _NEAR = (33, 157, 75), 12
_TIME_BAR_PX = 20
# A cancelled run may be retried, and shows for a while that it was cancelled.
_ENDS = ("Completed", "Failed", "Crashed")


def remember_login(context: BrowserContext, login: str) -> None:
    """Make a browser one in which somebody logged in to Prefect before."""
    stored = base64.b64encode(login.encode()).decode()
    context.add_init_script(f"localStorage.setItem('prefect-password', '{stored}')")


@dataclass
class PrefectPages:
    """One browser page on Prefect, and the folder that keeps what it showed."""

    page: Page
    url: str
    screenshots: Path

    def shot(self, name: str, *, height: int = 900) -> None:
        """Keep what the page shows on a screen of that height."""
        seen = self.page.viewport_size
        assert seen is not None
        self.page.set_viewport_size({"width": seen["width"], "height": height})
        self.page.screenshot(path=self.screenshots / f"{name}.png", animations="disabled")
        self.page.set_viewport_size(seen)

    @property
    def login_field(self) -> Locator:
        """Where the page asks for `user:password`."""
        return self.page.locator("input[type=password]")

    def log_in(self, login: str) -> None:
        """Give `user:password` to the page that asks for it."""
        self.login_field.fill(login)
        self.page.get_by_role("button", name="Login").click()

    def open_form(self, deployment: str) -> None:
        """From the list of deployments to the form of one."""
        self.page.goto(f"{self.url}/deployments")
        self.page.get_by_role("link", name=deployment).first.click()
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_role("link", name="Custom run").click()
        self.field("start_from").locator(_CHOICE).wait_for()

    def field(self, title: str) -> Locator:
        """A field of the form, or of the dialog that lies over the page, with its title, help, input and message."""
        dialog = self.page.get_by_role("dialog")
        place = dialog if dialog.count() else self.page.locator("body")
        titled = self.page.locator(".schema-form-property__label", has_text=re.compile(rf"^{title}( \(Optional\))?$"))
        return place.locator(".schema-form-property").filter(has=titled).first

    def fill(self, title: str, value: str) -> None:
        """Choose or type a value."""
        field = self.field(title)
        field.locator(f"{_CHOICE}, input, textarea").first.wait_for()
        if field.locator(_CHOICE).count():
            field.locator(_CHOICE).click()
            self.page.get_by_role("option", name=value, exact=True).click()
            expect(field.locator(_CHOSEN).first).to_contain_text(value)
        else:
            field.locator("input, textarea").first.fill(value)
            expect(field.locator("input, textarea").first).to_have_value(value)

    def choices(self, title: str) -> list[str]:
        """What a field offers."""
        self.field(title).locator(_CHOICE).click()
        self.page.get_by_role("option").first.wait_for()
        found = self.page.get_by_role("option").all_inner_texts()
        self.page.keyboard.press("Escape")
        expect(self.page.get_by_role("listbox")).to_have_count(0)
        return [text.strip() for text in found]

    def add_setting(self, text: str, *, under: str = "more_settings") -> None:
        """One more line of a field that takes several."""
        field = self.field(under)
        before = field.locator("textarea").count()
        field.get_by_role("button", name="Add item").click()
        expect(field.locator("textarea")).to_have_count(before + 1)
        field.locator("textarea").nth(before).fill(text)

    def submit(self) -> None:
        """Press Submit, of the dialog where there is one."""
        dialog = self.page.get_by_role("dialog")
        (dialog if dialog.count() else self.page).get_by_role("button", name="Submit").click()

    def send_form(self) -> UUID:
        """Press Submit, and return the id of the run that the server made."""
        with self.page.expect_response(re.compile(r"/create_flow_run$")) as answer:
            self.submit()
        return UUID(answer.value.json()["id"])

    def send_decision(self) -> None:
        """Press Submit of the dialog over a run that waits, and see that the server takes the answer.

        A server that is too busy to answer says so, and the form stays: then a person presses again.
        """
        for _ in range(_MOST_PRESSES):
            with self.page.expect_response(re.compile(r"/flow_runs/[^/]+/resume$"), timeout=_ANSWER_LIMIT_MS) as answer:
                self.submit()
            if answer.value.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                break
        assert answer.value.ok, f"The server answered {answer.value.status}: {answer.value.text()}"
        taken = answer.value.json()
        assert taken["status"] == "ACCEPT", f"The server did not take the answer: {taken}"
        expect(self.page.get_by_role("dialog")).to_have_count(0)

    def open_new_run(self, run: UUID) -> None:
        """From the deployment's page, which follows a form that was taken, to the new run's page.

        The list there may take a minute to show the run, which works meanwhile.
        """
        self.page.wait_for_url(re.compile(r"/deployments/deployment/[^/]+(\?tab=.*)?$"))
        self.page.locator(f"[role=tabpanel] a[href$='/runs/flow-run/{run}']").first.click()
        self.page.wait_for_url(f"**/runs/flow-run/{run}*")

    def submit_run(self) -> None:
        """Press Submit and open the page of the new run."""
        self.open_new_run(self.send_form())

    @property
    def told(self) -> Locator:
        """The message that pops up where the server refuses something."""
        return self.page.locator("[class*=toast]").first

    @property
    def _heading(self) -> Locator:
        return self.page.locator(".page-heading-flow-run")

    def expect_state(self, state: str, *, within_s: float) -> None:
        """Wait until the badge beside the run's name says so; a run that ended otherwise is not waited for."""
        badge = self._heading.locator(".state-badge").first
        expect(badge).to_have_text(re.compile("|".join({state, *_ENDS})), timeout=within_s * 1000)
        if (found := badge.inner_text().strip()) != state:
            raise AssertionError(f"The run is {found}, not {state}:\n{self.open_tab('Logs').inner_text()}")

    def press(self, button: str) -> Locator:
        """One of the buttons beside the run's name; the dialog that it opens."""
        self._heading.get_by_role("button", name=button).click()
        dialog = self.page.get_by_role("dialog")
        dialog.wait_for()
        return dialog

    def confirm(self, button: str) -> None:
        """Press a button beside the run's name and say yes."""
        self.press(button).get_by_role("button", name="Confirm").click()

    def open_tab(self, name: str) -> Locator:
        """What lies under a tab of the run's page."""
        self.page.get_by_role("listitem").filter(has_text=re.compile(rf"^\s*{name}\s*$")).first.click()
        panel = self.page.get_by_role("tabpanel", name=name)
        panel.wait_for()
        return panel

    def expect_task(self, name: str, state: str, *, within_s: float) -> None:
        """Wait until a task of that name is in that state, under the tab Task Runs."""
        task = self.page.locator(".task-run-list-item").filter(has=self.page.get_by_text(name, exact=True))
        expect(task.locator(".state-badge", has_text=re.compile(rf"^{state}$")).first).to_be_visible(
            timeout=within_s * 1000
        )

    def expect_completed_nodes(self, *, within_s: float) -> None:
        """Load the run's page anew, and wait until its graph shows stages that are done."""
        self.page.reload()  # a graph that was opened before its run began can take minutes to follow it
        self.page.get_by_role("button", name="Recenter graph").wait_for()
        deadline = time.monotonic() + within_s
        while self._completed_pixels() == 0:
            assert time.monotonic() < deadline, "the graph shows no stage that is done"
            self.page.wait_for_timeout(500)  # the graph is drawn, so no element tells that it has changed

    def _completed_pixels(self) -> int:
        """How much of the graph has the green of completed nodes; the bar of time below it left out."""
        drawn = Image.open(io.BytesIO(self.page.locator(_GRAPH).screenshot())).convert("RGB")
        nodes = drawn.crop((0, 0, drawn.width, drawn.height - _TIME_BAR_PX))
        counted = nodes.getcolors(maxcolors=nodes.width * nodes.height) or []
        return sum(count for count, colour in counted if isinstance(colour, tuple) and _is_near(colour, _COMPLETED))

    def open_artifact(self, key: str) -> None:
        """From the tab Artifacts to one of them."""
        panel = self.open_tab("Artifacts")
        panel.get_by_role("link").filter(has=self.page.get_by_text(key, exact=True)).first.click()
        self.page.wait_for_url("**/artifacts/**")
        self.page.locator("article").first.wait_for()

    def follow(self, link: str) -> Page:
        """The browser tab that a link of an artifact opens."""
        with self.page.context.expect_page() as opened:
            self.page.get_by_role("link", name=link).click()
        return opened.value


def _is_near(colour: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(abs(found - meant) < _NEAR for found, meant in zip(colour, wanted, strict=True))
