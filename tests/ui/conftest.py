"""What the browser tests share."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from ui.chromium import chromium
from ui.pages import PAGE_LIMIT_MS

expect.set_options(timeout=PAGE_LIMIT_MS)  # Playwright's own 5 s are too few on a machine that trains meanwhile


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser
