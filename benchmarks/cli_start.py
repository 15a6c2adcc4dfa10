"""How long `rlhf --help` takes, start of Python included: python benchmarks/cli_start.py"""

import statistics
import subprocess
import sys
import time

_WANTED_S = 0.5
_NUM_RUNS = 20


def main() -> int:
    durations_s = []
    for _ in range(_NUM_RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "flows.cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        durations_s.append(time.perf_counter() - start)
    median = statistics.median(durations_s)
    print(f"rlhf --help: median {median:.3f} s, worst {max(durations_s):.3f} s of {_NUM_RUNS} (wanted: {_WANTED_S} s)")
    return 0 if median < _WANTED_S else 1


if __name__ == "__main__":
    sys.exit(main())
