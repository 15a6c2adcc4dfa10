"""The evidence that a dead stage leaves: bounded, so that it fits into an outcome, a page and a message."""

from containers.launch.base import StageExit

MAX_LOG_LINES = 40
MAX_LINE_CHARACTERS = 400
MAX_STATE_ENTRIES = 20


def exit_evidence(stage_exit: StageExit) -> tuple[str, ...]:
    """How the program ended, what the runtime knows of it, and its last log lines; at most 62 short lines."""
    code = "unknown" if stage_exit.exit_code is None else str(stage_exit.exit_code)
    facts = [f"exit code {code}", f"after {stage_exit.duration_s:.1f} s"]
    facts += [
        text
        for text, holds in (
            ("out of memory (kernel)", stage_exit.oom_killed),
            ("timed out", stage_exit.timed_out),
            ("cancelled", stage_exit.cancelled),
            ("lost", stage_exit.lost),
        )
        if holds
    ]
    if stage_exit.signal is not None:
        facts.append(f"signal {stage_exit.signal}")
    state = [f"{name}: {value}" for name, value in list(stage_exit.state.items())[:MAX_STATE_ENTRIES]]
    lines = stage_exit.log_tail[-MAX_LOG_LINES:]
    heading = [f"last {len(lines)} log lines:"] if lines else ["it wrote no log"]
    return tuple(_shortened(line) for line in (", ".join(facts), *state, *heading, *lines))


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[: MAX_LINE_CHARACTERS - 1]}…"
