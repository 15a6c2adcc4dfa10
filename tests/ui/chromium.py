"""A headless Chromium that can draw Prefect's graph without a GPU."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    # Prefect draws the graph of a run with WebGL; with `--disable-gpu` alone it stays black.
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that this machine has installed, for the time of the block."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.fail("No Chromium is installed: `apt-get install chromium`.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(_FLAGS))
        yield browser
        browser.close()
