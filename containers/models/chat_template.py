"""Checks of a tokenizer's chat template before it sees any data: it is a program that came with the model."""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from containers.harness.errors import BadConfigError

TIME_LIMIT_S = 5.0
# Two exchanges: with one, a template that writes only the newest exchange would pass.
_PROBE = (
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "first answer"},
    {"role": "user", "content": "second question"},
    {"role": "assistant", "content": "second answer"},
)
_OTHER_ANSWER = {"role": "assistant", "content": "another answer"}
# The date that every template writes; Llama 3's template uses it when it has no clock.
FIXED_DATE = "26 July 2024"
_DATE_PARTS = "%d 26,%-d 26,%e 26,%j 208,%m 07,%-m 7,%b Jul,%B July,%Y 2024,%y 24,%a Fri,%A Friday,%F 2024-07-26"
_TIME_PARTS = "%H 00,%I 12,%M 00,%S 00,%p AM,%T 00:00:00,%R 00:00"
# The macro hides transformers' function of the same name. transformers drops the line break.
_FIXED_CLOCK = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join("|replace('{}', '{}')".format(*part.split()) for part in f"{_DATE_PARTS},{_TIME_PARTS}".split(","))
    + " }}{% endmacro %}\n"
)
# Four words in a row: text has them, names of roles and control tokens do not.
_PROSE = re.compile(r"(?:[\w',.:;-]+ ){3}\w")


class _TimeIsUpError(BaseException):
    """Time limit exceeded. Not an Exception, so that no code in between takes it for a fault of the template."""


def thinking(thinks: bool) -> dict[str, bool]:
    """Return the template's setting for a thought before the answer; templates without this setting ignore it.

    Qwen3 writes a thought unless the template disables it: 512 tokens end within the thought. The reward model is
    trained on answers without a thought, which the template writes after an empty thought; so a policy that it rewards
    also writes after an empty thought.
    """
    return {"enable_thinking": thinks}


def knows_thinking(tokenizer: Any) -> bool:
    """Return whether the template writes another opening where the assistant may think."""
    opened, plain = (
        tokenizer.apply_chat_template([_PROBE[0]], tokenize=False, add_generation_prompt=True, **thinking(thinks))
        for thinks in (True, False)
    )
    return bool(opened != plain)


def check_chat_template(
    tokenizer: Any, *, folder: Path, origin: str = "", is_own: bool = True, time_limit_s: float = TIME_LIMIT_S
) -> None:
    """Refuse a template that does not finish, does not render, or leaves out part of a conversation.

    A template that reads the clock first gets `FIXED_DATE` instead: tokens must not depend on the day.

    Jinja's sandbox keeps a template from files and processes, not from endless loops. The limit works in the main
    thread, where stages run. It cannot interrupt a single operation of the interpreter, such as a huge power.

    Args:
        folder: the folder that the tokenizer was loaded from.
        origin: the tokenizer's name outside the container, for messages.
        is_own: False if the template comes from the configuration.

    Raises:
        BadConfigError: the template is refused; names it, and what to do.
    """
    _fix_the_date(tokenizer)
    # transformers reads the template from the second file only if there is no first one.
    file = "chat_template.jinja" if (folder / "chat_template.jinja").is_file() else "tokenizer_config.json"
    name = f"The chat template of {origin or folder} ({file})"
    advice = "Put a chat_template.jinja that works beside the tokenizer files, or start from another model."
    if not is_own:
        name = f"The chat template of the configuration (chat_template), with the tokenizer of {origin or folder},"
        advice = "Correct it, or leave chat_template out to use the tokenizer's own."
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
            f"{name} did not finish four short messages within {time_limit_s:g} s: it loops forever, or for too long. "
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
    """Make a template that writes today's date (Llama 3.2, gpt-oss) write a fixed date.

    The fixed date becomes part of the template's text, because many programs apply it: stages, TRL's trainers, and
    those that load the saved model. Otherwise a certificate would be valid only until midnight.
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
    """Return warnings about a tokenizer's own template, a sentence each; empty for most templates.

    A template that passed `check_chat_template` may still add a date, or a system prompt to a conversation that has
    none (Qwen2.5 does: `You are Qwen, created by Alibaba Cloud …`).

    Args:
        setting: the configuration key that sets another template.
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
            f"tomorrow, the date is fixed to {FIXED_DATE} in every stage and in the template saved with the model; set "
            f"{setting} to a template without a date to leave it out."
        )
    return tuple(found)


def _system_prompt(tokenizer: Any) -> str | None:
    """Return the line of prose that the template adds to a single question; None if it adds none."""
    question = _PROBE[0]
    around = str(tokenizer.apply_chat_template([question], tokenize=False)).replace(question["content"], "\n")
    return next((line for line in around.splitlines() if _PROSE.search(line)), None)


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
