"""How often Prefect's client repeats a request, for the time of a block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import SettingsContext, get_settings_context
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings


@contextmanager
def no_retries() -> Iterator[None]:
    """Requests of Prefect's client are not repeated; every other setting stays.

    Prefect's own `temporary_settings` reads environment and files anew for each of sixty groups of settings: 45 ms of
    processor time where this takes 0.1 ms. So they are read anew only where the environment has come to name another
    server than the settings do, whose client would start a server of its own.
    """
    context = get_settings_context()
    if os.environ.get("PREFECT_API_URL") not in (None, PREFECT_API_URL.value_from(context.settings)):
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            yield
        return
    client = context.settings.client.model_copy(update={"max_retries": 0})
    settings = context.settings.model_copy(update={"client": client})
    with SettingsContext(profile=context.profile, settings=settings):
        yield
