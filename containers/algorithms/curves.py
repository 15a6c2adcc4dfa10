"""Where the curves of a policy's training began and where they ended, as figures."""

from containers.contracts.outcome import Metric

# Start and end of a curve: the mean over this share of its points.
_END_SHARE = 0.1


def curve_metrics(history: list[dict[str, float]], *, num_steps: int) -> tuple[Metric, ...]:
    """Reward at start and end, and KL, length and share of ended completions at the end.

    Each is the mean over the first or last tenth of the logged points, at least one; `count` is their number.
    """
    points = [entry for entry in history if "reward" in entry]
    tail = max(1, round(len(points) * _END_SHARE))

    def mean(name: str, curve: str, unit: str, entries: list[dict[str, float]]) -> list[Metric]:
        values = [entry[curve] for entry in entries if curve in entry]
        return [Metric(name=name, value=sum(values) / len(values), unit=unit, count=len(values))] if values else []

    return (
        *mean("reward_start", "reward", "score", points[:tail]),
        *mean("reward_end", "reward", "score", points[-tail:]),
        *mean("kl_end", "kl", "nats", points[-tail:]),
        *mean("completion_length_end", "completion_length", "tokens", points[-tail:]),
        *mean("ended_fraction_end", "ended_fraction", "fraction", points[-tail:]),
        Metric(name="num_steps", value=num_steps, unit="steps"),
    )
