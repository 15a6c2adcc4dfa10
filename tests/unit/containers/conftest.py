"""What the tests of pages share: their plots."""

import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

_drawn: dict[bytes, Any] = {}


@pytest.fixture
def drawn_anew() -> None:
    """A test that takes this draws every plot itself."""


@pytest.fixture(autouse=True)
def plots_drawn_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's plot is drawn once per process for the same records: a page has fourteen, each a tenth of a second.

    The functions of `containers.report.figures` are pure, and are tested where they are imported by name.
    """
    figures = sys.modules.get("containers.report.figures")
    if figures is None or "drawn_anew" in request.fixturenames:
        return
    for name in dir(figures):
        if name.endswith("_plot"):
            monkeypatch.setattr(figures, name, _remembered(getattr(figures, name)))


def _remembered(draw: Callable[..., Any]) -> Callable[..., Any]:
    def drawn(*arguments: Any, **named: Any) -> Any:
        key = pickle.dumps((draw.__name__, arguments, named))
        if key not in _drawn:
            _drawn[key] = draw(*arguments, **named)
        return _drawn[key]

    return drawn
