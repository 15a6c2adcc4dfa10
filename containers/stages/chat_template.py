"""Tries a tokenizer's chat template before any data goes through it: it came with the model, and it is a program."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from containers.stages.errors import BadConfigError

TIME_LIMIT_S = 5.0
# Two exchanges: a template that shows only the newest one would pass with a single one.
_PROBE = (
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "first answer"},
    {"role": "user", "content": "second question"},
    {"role": "assistant", "content": "second answer"},
)


class _TimeIsUpError(BaseException):
    """Not an Exception, so that nothing between the signal and us takes it for a fault of the template."""


def check_chat_template(tokenizer: Any, *, folder: Path, origin: str = "", time_limit_s: float = TIME_LIMIT_S) -> None:
    """Refuse a template that does not come to an end, does not render, or leaves out what it is given.

    Jinja's sandbox keeps a template from files and processes, not from looping. The limit holds in the main thread,
    where stages run, and cannot interrupt a single operation of the interpreter such as a huge power.

    Args:
        folder: where the tokenizer was loaded from.
        origin: what the tokenizer is called outside, for people.

    Raises:
        BadConfigError: names the template, and what to do.
    """
    name = f"The chat template of {origin or folder} ({_file_of_template(folder)})"
    advice = "Put a chat_template.jinja that works beside the tokenizer files, or start from another model."
    try:
        with _limited_to(time_limit_s):
            tokenizer.apply_chat_template(list(_PROBE[:-1]), tokenize=False, add_generation_prompt=True)
            rendered = str(tokenizer.apply_chat_template(list(_PROBE), tokenize=False))
    except _TimeIsUpError:
        raise BadConfigError(
            f"{name} did not finish four short messages within {time_limit_s:g} s: it loops for ever, or for too long. "
            f"{advice}"
        ) from None
    except Exception as error:
        raise BadConfigError(f"{name} does not render two questions with their answers: {error}. {advice}") from error
    lost = [message["content"] for message in _PROBE if message["content"] not in rendered]
    if lost:
        raise BadConfigError(
            f"{name} leaves out `{lost[0]}` of two questions with their answers, so a model would be trained and "
            f"judged on conversations with parts missing. {advice}"
        )


def _file_of_template(folder: Path) -> str:
    """The file that transformers took the template from."""
    return "chat_template.jinja" if (folder / "chat_template.jinja").is_file() else "tokenizer_config.json"


@contextmanager
def _limited_to(time_limit_s: float) -> Iterator[None]:
    """Raise _TimeIsUpError in the body after `time_limit_s`; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        raise _TimeIsUpError

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, time_limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
