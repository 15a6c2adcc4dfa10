"""Prefect's client repeats a request for minutes; what stands beside a run at work must ask once, and ask cheaply."""

import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    Settings,
    get_current_settings,
    temporary_settings,
)

from tasks.clients.prefect import no_retries


def test_requests_are_not_repeated_within_and_all_else_stays() -> None:
    before = get_current_settings()
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 3}):
        with no_retries():
            assert PREFECT_CLIENT_MAX_RETRIES.value() == 0
            assert PREFECT_API_URL.value() == "http://127.0.0.1:9/api"
        assert PREFECT_CLIENT_MAX_RETRIES.value() == 3
    assert get_current_settings() is before


def test_the_settings_are_not_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_retries():
        pass

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the settings were read from environment and files")

    monkeypatch.setattr(Settings, "__init__", refuse)
    with no_retries():
        assert PREFECT_CLIENT_MAX_RETRIES.value() == 0


def test_a_server_that_the_environment_came_to_name_is_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with no_retries():
        assert PREFECT_API_URL.value() == "http://127.0.0.1:9/api"
        assert PREFECT_CLIENT_MAX_RETRIES.value() == 0
