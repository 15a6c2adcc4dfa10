"""Prefect's page asks for the login that was made for its server, once in each browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Response, expect
from ui.pages import PAGE_LIMIT_MS, PrefectPages

from flows.servers.local import Servers, ServerSettings, local_servers
from flows.servers.logins import own_login

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("login")


@pytest.fixture(scope="module")
def servers(state_dir: Path) -> Iterator[Servers]:
    """Prefect alone."""
    settings = ServerSettings(state_dir=state_dir, mlflow_uri="sqlite:///unused.db")
    with local_servers(settings, say=lambda text: None) as servers:
        yield servers


@pytest.fixture
def visitor(browser: Browser) -> Iterator[BrowserContext]:
    """A browser that was never here."""
    context = browser.new_context()
    context.set_default_timeout(PAGE_LIMIT_MS)
    yield context
    context.close()


@pytest.mark.parametrize("path", ["", "/deployments"], ids=["the address that is printed", "a page that is linked"])
def test_the_page_asks_for_the_login_and_remembers_it(
    visitor: BrowserContext, servers: Servers, state_dir: Path, tmp_path: Path, path: str
) -> None:
    prefect = PrefectPages(visitor.new_page(), servers.prefect_ui_url, tmp_path)
    prefect.page.goto(f"{prefect.url}{path}")
    expect(prefect.login_field).to_be_visible()
    with prefect.page.expect_response(lambda answer: _is_inside(answer) and answer.status == 200):
        prefect.log_in(own_login(state_dir))
    expect(prefect.login_field).to_have_count(0)

    another = PrefectPages(visitor.new_page(), servers.prefect_ui_url, tmp_path)
    with another.page.expect_response(_is_inside) as answer:
        another.page.goto(f"{another.url}{path}")
    assert answer.value.status == 200
    expect(another.page.get_by_text("Deployments", exact=True).first).to_be_visible()
    expect(another.login_field).to_have_count(0)


def test_a_wrong_login_opens_nothing(visitor: BrowserContext, servers: Servers, tmp_path: Path) -> None:
    prefect = PrefectPages(visitor.new_page(), servers.prefect_ui_url, tmp_path)
    answers: list[int] = []
    prefect.page.on("response", lambda answer: answers.append(answer.status) if _is_inside(answer) else None)
    prefect.page.goto(prefect.url)
    prefect.log_in("rlhf:guessed")
    expect(prefect.page.get_by_text(re.compile("Authentication failed|Invalid credentials")).first).to_be_visible()
    expect(prefect.login_field).to_be_visible()
    assert 200 not in answers


def _is_inside(answer: Response) -> bool:
    """Whether it is an answer that needs a login, of what the pages ask for."""
    return bool(re.search(r"/api/(deployments|flow_runs|flows|ui)/", answer.url))
