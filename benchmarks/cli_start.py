"""Time `rlhf --help` and `import flows.rlhf`, start of Python included: python -m benchmarks.cli_start

`import flows.rlhf` includes `from prefect import flow`, which is timed alternately with it.
"""

import statistics
import subprocess
import sys
import time

_WANTED_S = 0.5
_NUM_RUNS = 20
_HELP, _FLOW, _PREFECT = "rlhf --help", "import flows.rlhf", "from prefect import flow"
_COMMANDS = {_HELP: ("-m", "flows.cli.main", "--help"), _FLOW: ("-c", _FLOW), _PREFECT: ("-c", _PREFECT)}


def main() -> int:
    """Print median and worst of each; return 1 if the help, or `flows.rlhf` without Prefect, is slower than wanted."""
    durations_s: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for _ in range(_NUM_RUNS):
        for name, arguments in _COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            durations_s[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(seconds) for name, seconds in durations_s.items()}
    for name, seconds in durations_s.items():
        print(f"{name}: median {medians[name]:.3f} s, worst {max(seconds):.3f} s of {_NUM_RUNS}")
    own_s = medians[_FLOW] - medians[_PREFECT]
    print(f"wanted: {_HELP} and what {_FLOW} adds to Prefect ({own_s:.3f} s) under {_WANTED_S} s each")
    return 0 if max(medians[_HELP], own_s) < _WANTED_S else 1


if __name__ == "__main__":
    sys.exit(main())
