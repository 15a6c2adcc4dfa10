"""Judge what the probes of the self-test measured: a row for each, by the table of rules; pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from containers.contracts.configs.selftest import Measured, ProbeResult
from tasks.checks.selftest import problems
from tasks.checks.selftest.problems import Facts, Problem


@dataclass(frozen=True)
class Rule:
    """A row of the table.

    Attributes:
        passes: what passes, as text.
        problems: of what was measured.
        broken: advice where the probe broke off.
    """

    name: str
    passes: str
    problems: Callable[[Measured, Facts], Sequence[Problem]]
    broken: str


def judged(measured: Measured, facts: Facts) -> ProbeResult:
    """The row of a probe."""
    rule = RULES[measured.probe]
    row = ProbeResult(
        probe=measured.probe,
        name=rule.name,
        verdict="passed",
        passes=rule.passes,
        values=measured.values,
        notes=measured.notes,
        duration_s=measured.duration_s,
    )
    if measured.refused:
        return row.model_copy(update={"verdict": "not run", "why": measured.refused})
    if measured.error:
        return row.model_copy(update={"verdict": "failed", "why": measured.error, "advice": rule.broken})
    found = rule.problems(measured, facts)
    if not found:
        return row
    why, advice = ("; ".join(part for part in dict.fromkeys(parts) if part) for parts in zip(*found, strict=True))
    return row.model_copy(update={"verdict": "failed", "why": why, "advice": advice})


_FITS = f"it fits, at most {problems.MOST_ABOVE_PLAN - 1:.0%} above the plan's memory"
_REPORT = "Send the self-test's file; the log's last lines are in it."
_SMALLER = (
    "If a GPU was full: lower pack_tokens or max_length, or take another profile (`rlhf plan --choose`). Anything else "
    "is a defect of rlhf-flows: send the self-test's file."
)
_OTHER_ENGINE = "Use train_policy.rollout_engine: shared_prompts, or mend the engine's installation."
RULES = {
    "cards": Rule(
        "cards", "each card works and fits the profile; the driver runs the image's CUDA", problems.cards, _REPORT
    ),
    "container": Rule(
        "container",
        "the program gets what its contract says, and loads compiled libraries from its caches",
        problems.container,
        "Look at `rlhf check`: the program did not start.",
    ),
    "memory": Rule(
        "memory",
        "a pattern over nine tenths of the memory comes back; products and copies at "
        f"{problems.LEAST_SHARE:.0%} of the data sheet; {problems.LEAST_FROM_HOST / 1e9:.0f} GB/s from the host; the "
        f"slowest card at {problems.LEAST_OF_MEDIAN:.0%} of the median",
        problems.memory,
        "A card broke off: look at `dmesg | grep -i xid`, and leave it out (CUDA_VISIBLE_DEVICES).",
    ),
    "kernels": Rule(
        "kernels", "log-probabilities and gradients as in float64, but for rounding", problems.kernels, _REPORT
    ),
    "connections": Rule(
        "connections",
        f"sums are right; {problems.LEAST_BUS / 1e9:.0f} GB/s on the bus with NVLink, "
        f"{problems.LEAST_BUS_PCIE / 1e9:.0f} without; half of /dev/shm is free",
        problems.connections,
        _REPORT,
    ),
    "reward_step": Rule("reward model's step", _FITS, problems.step, _SMALLER),
    "policy_step": Rule("policy's step", _FITS, problems.step, _SMALLER),
    "numbers": Rule(
        "numbers",
        f"packed beside padded and beside float32 on the CPU: gradients with a cosine of {problems.LEAST_COSINE} or "
        f"more, losses within {problems.MOST_APART:.0%}",
        problems.numbers,
        _REPORT,
    ),
    "one_rank": Rule(
        "all ranks",
        f"the first loss within {problems.MOST_APART:.0%} of that of one rank",
        problems.one_rank,
        _REPORT,
    ),
    "resume": Rule("resume", "killed, stopped and resumed: the same weights", problems.resume, _REPORT),
    "rollouts": Rule(
        "rollout engine",
        f"it starts within {problems.MOST_START_S:.0f} s, and says what the policy says after two changes of weights",
        problems.rollouts,
        _OTHER_ENGINE,
    ),
    "policy_training": Rule("policy's training", "a small policy trains with it", problems.nothing_more, _OTHER_ENGINE),
    "reload": Rule("save and reload", "merged and adapter score as in memory", problems.nothing_more, _REPORT),
    "signals": Rule(
        "signals",
        f"whole checkpoints after SIGKILL and SIGTERM; memory free within {problems.MOST_HELD_S:.0f} s",
        problems.signals,
        _REPORT,
    ),
    "load": Rule(
        "load",
        f"a minute of full load: {problems.LEAST_AFTER_LOAD:.0%} of the speed is left, no heat, no new errors",
        problems.load,
        "A card broke off under load: look at `dmesg | grep -i xid`, power supply and cooling.",
    ),
}
