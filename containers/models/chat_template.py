"""Tries a tokenizer's chat template before any data goes through it: it came with the model, and it is a program."""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from containers.harness.errors import BadConfigError

# Qwen3 thinks aloud before it answers unless its template is told not to: 512 tokens end in the middle of the thought.
# The reward model has learnt from answers without a thought, which the template writes after an empty one; so the
# policy begins to write after an empty thought as well. Templates that do not know the word ignore it.
ANSWER_AT_ONCE = {"enable_thinking": False}
TIME_LIMIT_S = 5.0
# Two exchanges: a template that shows only the newest one would pass with a single one.
_PROBE = (
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "first answer"},
    {"role": "user", "content": "second question"},
    {"role": "assistant", "content": "second answer"},
)
_OTHER_ANSWER = {"role": "assistant", "content": "another answer"}
# The day that every template writes; Llama 3's takes it by itself where there is no clock.
FIXED_DATE = "26 July 2024"
_DATE_PARTS = "%d 26,%-d 26,%e 26,%j 208,%m 07,%-m 7,%b Jul,%B July,%Y 2024,%y 24,%a Fri,%A Friday,%F 2024-07-26"
_TIME_PARTS = "%H 00,%I 12,%M 00,%S 00,%p AM,%T 00:00:00,%R 00:00"
# A macro hides the function of the same name that transformers gives to templates. transformers drops the line break.
_FIXED_CLOCK = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join("|replace('{}', '{}')".format(*part.split()) for part in f"{_DATE_PARTS},{_TIME_PARTS}".split(","))
    + " }}{% endmacro %}\n"
)
# Four words in a row, which text has and the names of roles and control tokens have not.
_PROSE = re.compile(r"(?:[\w',.:;-]+ ){3}\w")


class _TimeIsUpError(BaseException):
    """Not an Exception, so that nothing between the signal and us takes it for a fault of the template."""


def check_chat_template(
    tokenizer: Any, *, folder: Path, origin: str = "", is_own: bool = True, time_limit_s: float = TIME_LIMIT_S
) -> None:
    """Refuse a template that does not come to an end, does not render, or leaves out what it is given.

    One that reads the clock is first given `FIXED_DATE` for it: tokens must not depend on the day.

    Jinja's sandbox keeps a template from files and processes, not from looping. The limit holds in the main thread,
    where stages run, and cannot interrupt a single operation of the interpreter such as a huge power.

    Args:
        folder: where the tokenizer was loaded from.
        origin: what the tokenizer is called outside, for people.
        is_own: False where the template comes from the configuration.

    Raises:
        BadConfigError: names the template, and what to do.
    """
    _fix_the_date(tokenizer)
    name = f"The chat template of {origin or folder} ({_file_of_template(folder)})"
    advice = "Put a chat_template.jinja that works beside the tokenizer files, or start from another model."
    if not is_own:
        name = f"The chat template of the configuration (chat_template), with the tokenizer of {origin or folder},"
        advice = "Mend it, or leave chat_template out to take the tokenizer's own."
    try:
        with _limited_to(time_limit_s):
            tokenizer.apply_chat_template(list(_PROBE[:-1]), tokenize=False, add_generation_prompt=True)
            rendered = str(tokenizer.apply_chat_template(list(_PROBE), tokenize=False))
            tokens, other_tokens = (
                tokenizer.apply_chat_template([*_PROBE[:-1], last], tokenize=True, return_dict=True)["input_ids"]
                for last in (_PROBE[-1], _OTHER_ANSWER)
            )
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
    if list(tokens) == list(other_tokens):
        raise BadConfigError(
            f"{name} gives the same tokens for `{_PROBE[-1]['content']}` and `{_OTHER_ANSWER['content']}`, so every "
            f"answer would have the same score. The tokenizer does not know the template's text. {advice}"
        )


def _fix_the_date(tokenizer: Any) -> None:
    """Have the template write one date on every day, where it asks for the day's (Llama 3.2, gpt-oss).

    It becomes part of the template's text, because many programs apply it: stages, TRL's trainers, and whoever loads
    the model that is saved here. Otherwise a certificate would hold until midnight.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, str):
        tokenizer.chat_template = _with_fixed_date(template)
    elif isinstance(template, dict):
        tokenizer.chat_template = {name: _with_fixed_date(text) for name, text in template.items()}


def _with_fixed_date(template: str) -> str:
    if "strftime_now" not in template or template.startswith(_FIXED_CLOCK):
        return template
    return _FIXED_CLOCK + template


def peculiarities(tokenizer: Any, *, setting: str) -> tuple[str, ...]:
    """What a person should know about a tokenizer's own template, a sentence each: most templates have none.

    A template that passed `check_chat_template` may still put a system prompt before a conversation that has none
    (Qwen2.5 does: `You are Qwen, created by Alibaba Cloud …`), or a date.

    Args:
        setting: key of the configuration by which another template can be given.
    """
    found = []
    if (text := _system_prompt(tokenizer)) is not None:
        found.append(
            f"The start model's chat template puts a system prompt before conversations that have none: `{text}`. "
            f"Every conversation is trained and scored with it; set {setting} (chatml, say) to leave it out."
        )
    if "strftime_now" in str(tokenizer.chat_template):
        found.append(
            f"The start model's chat template writes the date of the day. So that a conversation has the same score "
            f"tomorrow, it is {FIXED_DATE} here, in every stage and in the template that is saved with the model; set "
            f"{setting} to a template without a date to leave it out."
        )
    return tuple(found)


def _system_prompt(tokenizer: Any) -> str | None:
    """The line of running text that the template puts around a lone question; None where it puts none there."""
    question = _PROBE[0]
    around = str(tokenizer.apply_chat_template([question], tokenize=False)).replace(question["content"], "\n")
    return next((line for line in around.splitlines() if _PROSE.search(line)), None)


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
