"""Compare the numbers of two runs of one configuration: `python -m benchmarks.same_numbers outputs/a outputs/b`

It compares the metrics in the manifests of each run's latest artifacts. Durations and memory are left out.
"""

import math
import sys
from pathlib import Path

from containers.contracts.manifest import Manifest
from containers.contracts.names import CONTAINER_STAGES, MANIFEST_FILE, StageName

_NOT_NUMERIC_RESULTS = ("s", "bytes")


def latest_metrics(output_dir: Path, stage: StageName) -> dict[str, float]:
    """Return the metric values of the run's artifact of that stage; empty if there is none."""
    path = output_dir / "artifacts" / stage / MANIFEST_FILE
    if not path.is_file():
        return {}
    manifest = Manifest.model_validate_json(path.read_bytes())
    return {metric.name: metric.value for metric in manifest.metrics if metric.unit not in _NOT_NUMERIC_RESULTS}


def main() -> int:
    """Print each metric side by side; return 1 if any differs or nothing was compared."""
    first, second = (Path(argument) for argument in sys.argv[1:3])
    compared = different = 0
    for stage in CONTAINER_STAGES:
        if stage is StageName.WRITE_REPORT:
            continue
        left, right = latest_metrics(first, stage), latest_metrics(second, stage)
        for name in sorted(left.keys() | right.keys()):
            a, b = left.get(name, math.nan), right.get(name, math.nan)
            same = a == b
            compared += 1
            different += not same
            print(f"{'same     ' if same else 'DIFFERENT'}  {stage:<22} {name:<40} {a:<24.17g} {b:.17g}")
    print(f"{compared} figures compared, {different} differ.")
    return int(different > 0 or compared == 0)


if __name__ == "__main__":
    sys.exit(main())
