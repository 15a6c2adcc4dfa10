"""Format numbers, durations and foreign texts for readers; pure. For the report and the Prefect tables."""

import math
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from html import escape

from containers.contracts.certificate import ScoreParity
from containers.contracts.outcome import Metric
from containers.contracts.records import SCORE_TOLERANCE

MISSING = "—"
_MINUS = "−"
_MARKDOWN_SPECIALS = "\\`*[]|~"
_ABBREVIATIONS = {"kl": "KL", "sft": "SFT"}
_ROUNDED_UNITS = frozenset({"score", "nats"})
_WHOLE_UNITS = frozenset({"rows", "pairs", "steps", "prompts", "figures", "files", "examples", "looks"})
# Controls, surrogates, and the format characters that reorder or hide text on a page.
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def number(value: float | None, *, signed: bool = False) -> str:
    """A number with three significant digits, thousands separators and a true minus; `—` for None.

    Example: 0.87345 gives `0.873`, 20142 gives `20,142`, -0.5 gives `−0.500`, 0.0000123 gives `1.23e−5`.
    """
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if isinstance(value, int):
        text = f"{size:,}"
    elif size == 0:
        text = "0"
    elif size >= 999.5:
        text = f"{size:,.0f}"
    elif size < 0.00099950:
        mantissa, exponent = f"{size:.2e}".split("e")
        text = f"{mantissa}e{int(exponent)}".replace("-", _MINUS)
    else:
        digits = 2 - math.floor(math.log10(float(f"{size:.2e}")))
        text = f"{size:.{max(0, digits)}f}"
    if value < 0:
        return f"{_MINUS}{text}"
    return f"+{text}" if signed and value > 0 else text


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal, or two significant digits below one percent. 0.9125 gives `91.3 %`."""
    if value is None:
        return MISSING
    share = 100 * value
    if share == 0 or share == 100:
        return f"{share:.0f} %"
    digits = 1 if abs(share) >= 1 else min(4, 1 - math.floor(math.log10(abs(share))))
    return f"{share:.{digits}f} %".replace("-", _MINUS)


def duration(seconds: float | None) -> str:
    """A duration as text: 134 gives `2 min 14 s`, 3723 gives `1 h 2 min`, 0.34 gives `0.34 s`."""
    if seconds is None:
        return MISSING
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def moment(iso_time: str) -> str:
    """`2026-11-21T11:29:00+00:00` as `21 November 2026, 11:29 UTC`; any other text unchanged, in one line."""
    try:
        parsed = datetime.fromisoformat(iso_time)
    except ValueError:
        return one_line(iso_time, 60)
    return f"{parsed.day} {parsed:%B %Y, %H:%M} {parsed.tzname() or ''}".strip()


def size(num_bytes: int | float | None) -> str:
    """Bytes in the largest binary unit that leaves at least 1: 1536 gives `1.50 KiB`."""
    if num_bytes is None:
        return MISSING
    amount = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1000 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "bytes" else f"{number(amount)} {unit}"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, as `Metric` names units: fractions as percent, seconds and bytes in readable units.

    Scores and nats that float32 cannot distinguish from zero are `≈0`.
    """
    if value is None:
        return MISSING
    if unit == "fraction":
        return percent(value)
    if unit == "s":
        return duration(value)
    if unit == "bytes":
        return size(value)
    if unit in _ROUNDED_UNITS and 0 < abs(value) < SCORE_TOLERANCE:
        return "≈0" if unit == "score" else f"≈0 {unit}"
    if unit in _WHOLE_UNITS and float(value).is_integer():
        value = int(value)
    return f"{number(value)} {unit}".rstrip() if unit not in ("", "score") else number(value)


def interval(metric: Metric | None) -> str:
    """`89.1 to 93.2 %`; empty where the metric has no interval."""
    if metric is None or metric.ci_low is None or metric.ci_high is None:
        return ""
    low, high = quantity(metric.ci_low, metric.unit), quantity(metric.ci_high, metric.unit)
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit else low} to {high}"


def sample_size(metric: Metric, noun: str = "") -> str:
    """Number of observations, and of their prompts where these are fewer; empty if the metric has no count.

    Example: `384 pairs of 48 prompts`; without a noun `384 of 48 prompts`; `48 prompts` where each has one.
    """
    if metric.count is None:
        return ""
    if metric.num_prompts is None or metric.num_prompts == metric.count:
        return f"{metric.count:,} {noun}".rstrip()
    return f"{metric.count:,} {noun}".rstrip() + f" of {metric.num_prompts:,} prompt" + "s" * (metric.num_prompts != 1)


def metric_text(metric: Metric | None) -> str:
    """One line: value, interval, sample size, and `estimated` where it is; `—` for None.

    Example: `91.3 % (89.1 to 93.2 %, n = 812)`.
    """
    if metric is None:
        return MISSING
    parts = [interval(metric), f"n = {sample_size(metric)}" if metric.count is not None else ""]
    parts.append("estimated" if metric.origin == "estimated" else "")
    details = ", ".join(part for part in parts if part)
    return quantity(metric.value, metric.unit) + (f" ({details})" if details else "")


def parity_text(parity: ScoreParity) -> str:
    """How nearly equal the code paths are: `1.8 % of a typical margin, 0 of 32 orders changed`."""
    share = parity.margin_difference
    if share is None:
        return f"scores up to {number(parity.max_difference)} apart"
    return (
        f"{margin_share(share)} of a typical margin, {parity.num_orders_changed} of {parity.num_pairs} orders changed"
    )


def margin_share(share: float) -> str:
    """A share of a typical margin as percent; what float32 rounds is `less than 0.01 %`."""
    return percent(share) if share == 0 or share >= SCORE_TOLERANCE else "less than 0.01 %"


def clean(text: str) -> str:
    """`text` with controls, lone surrogates and direction marks shown as `\\x1b`; newlines and tabs stay."""
    return "".join(_visible(character) for character in text.replace("\r\n", "\n"))


def shorten(text: str, limit: int) -> str:
    """`text`, cleaned, with at most `limit` of its characters; a shortened text says how long it was."""
    if len(text) <= limit:
        return clean(text)
    return f"{clean(text[:limit])}… [first {limit:,} of {len(text):,} characters]"


def one_line(text: str, limit: int) -> str:
    """`shorten`, with every run of white space made one blank."""
    return shorten(" ".join(text.split()), limit)


def error_line(error: BaseException) -> str:
    """An error's message in one line; its type where the message is empty."""
    return one_line(str(error), 200) or type(error).__name__


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; `none` for none."""
    if not names:
        return "none"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def humanize(name: str) -> str:
    """A name as a title: `over_long` and `over-long` become `Over long`; `kl` becomes `KL`."""
    words = name.replace("_", " ").replace("-", " ").split()
    text = " ".join(_ABBREVIATIONS.get(word, word) for word in words)
    return text[:1].upper() + text[1:]


def short_digest(digest: str) -> str:
    """The first 12 characters of a digest, with its scheme; empty for an empty one."""
    scheme, found, rest = digest.partition(":")
    return f"{scheme}:{rest[:12]}" if found else digest[:12]


def markdown_text(text: str, *, limit: int = 300) -> str:
    """Foreign text for Markdown: one line, shortened, without HTML, links, images, code or cell borders."""
    escaped = escape(one_line(text, limit), quote=False)
    return "".join(f"\\{character}" if character in _MARKDOWN_SPECIALS else character for character in escaped)


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    code = ord(character)
    if unicodedata.category(character) not in ("Cc", "Cs") and character not in _BIDIRECTIONAL:
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
