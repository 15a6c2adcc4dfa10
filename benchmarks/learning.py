"""Does each algorithm learn? A tiny model that is right in about half of its sums, before and after it is trained.

Every stage is run by its own program. Fine-tuning imitates right and wrong answers alike; then each algorithm trains
that model on the same prompts, with exact match as its only reward, and DPO on the pairs. Held-out prompts judge both.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.stages import say
from benchmarks.provenance import commit
from benchmarks.speed_table import write_part
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.contracts.names import POLICY_EVALUATION_FILE, StageName
from containers.contracts.records import ComparedTerm, PolicyEvaluation
from flows.demo.sums import HELD_OUT_PREFIX, PAIRS_FILE, PROMPTS_FILE, write_sums
from tasks.checks.bare_stages import BareStages
from tasks.config.loading import load_run_config
from tasks.config.run import RunConfig
from tasks.pipeline.stages import BY_NAME, STAGES, walk

PAGE = Path(__file__).resolve().parents[1] / "docs" / "proofs" / "learning.md"
_RUN = PAGE.parents[2] / "configs" / "runs" / "grpo-sums.yaml"
_DPO = "dpo"
BEFORE = (StageName.FILTER_DATASET, StageName.FILTER_PROMPTS, StageName.BUILD_BASE_MODEL, StageName.TRAIN_SFT)
# Weights move faster in DPO, of which a pair says more than a reward.
_OF_DPO = (
    "train_dpo={global_batch_size: 64, max_length: 64, lora: null, gradient_checkpointing: false, beta: 0.1, "
    "optimizer: {learning_rate: 3.0e-4}, schedule: {max_steps: 80, eval_steps: 40}}",
    # No reward model is trained, but its keys must fit the model.
    "train_reward_model={max_length: 64, lora: {r: 8}}",
    "evaluate_reward_model.max_length=64",
)

# A policy that solves nearly every prompt cannot fill a step, and its training ends.
_REFILLED = [name for name, parts in POLICY_ALGORITHMS.items() if parts.refill]
_REFILLED_STEPS = 50
_QUICK = ("train_sft.schedule={max_steps: 6, eval_steps: 6}", "train_policy.schedule={max_steps: 2, save_steps: 2}")


@dataclass(frozen=True)
class Learned:
    """What one algorithm made of the start model of one seed."""

    algorithm: str
    seed: int
    exact: ComparedTerm
    seconds: float


def run_of(folder: Path, *changes: str, seed: int) -> RunConfig:
    """Return the run on the rows of that folder."""
    files = {
        "dataset.train": PAIRS_FILE,
        "dataset.validation": f"{HELD_OUT_PREFIX}{PAIRS_FILE}",
        "prompts.train": PROMPTS_FILE,
        "prompts.validation": f"{HELD_OUT_PREFIX}{PROMPTS_FILE}",
    }
    places = [f"{key}={folder / name}" for key, name in files.items()]
    changes = ("answer_sets=null", *places, *changes)
    return load_run_config(_RUN, overrides=[f"run.seed={seed}", *changes]).config


def learned(
    folder: Path, algorithms: Sequence[str], *, seed: int, count: int, always: Sequence[str] = ()
) -> list[Learned]:
    """Train and judge each algorithm from the same start.

    Args:
        always: changes of the run for all of them.
    """
    write_sums(folder, seed=seed, count=count)
    run = run_of(folder, *always, seed=seed)
    made: dict[str, Any] = {"checked": None}
    stages = BareStages(run, folder, limit_s=1800, report=say)
    for _ in walk(run, stages, made=made, stages=tuple(stage for stage in STAGES if stage.name in BEFORE)):
        pass
    found = []
    for algorithm in algorithms:
        began = time.monotonic()
        policy = _trained(folder, algorithm, always, made, seed=seed)
        judge = BareStages(run, folder, way=algorithm, limit_s=1800, report=say)
        written = judge.made(BY_NAME[StageName.SAMPLE_COMPLETIONS], {**made, "policy": policy})
        artifact = judge.made(BY_NAME[StageName.EVALUATE_POLICY], {**made, "completions": written})
        text = (Path(artifact.path) / POLICY_EVALUATION_FILE).read_bytes()
        (exact,) = PolicyEvaluation.model_validate_json(text).terms
        found.append(Learned(algorithm, seed, exact, time.monotonic() - began))
    return found


def _trained(folder: Path, algorithm: str, changes: Sequence[str], made: dict[str, Any], *, seed: int) -> Any:
    own, stage = [f"train_policy.algorithm={json.dumps(algorithm)}"], StageName.TRAIN_POLICY
    if algorithm in _REFILLED:
        own.append(f"train_policy.schedule={{max_steps: {_REFILLED_STEPS}, save_steps: {_REFILLED_STEPS}}}")
    if algorithm == _DPO:
        own, stage = [*_OF_DPO], StageName.TRAIN_DPO
    run = run_of(folder, *changes, *own, seed=seed)
    stages = BareStages(run, folder, way=algorithm, limit_s=1800, report=say)
    if run.takes_part(StageName.COMPUTE_REFERENCE):
        made = {**made, "reference": stages.made(BY_NAME[StageName.COMPUTE_REFERENCE], made)}
    return stages.made(BY_NAME[stage], made)


def table(found: Sequence[Learned], *, count: int) -> str:
    """Return a line for each algorithm: exact match before and after, of each seed."""
    lines = [
        f"{count:,} prompts, of which a part is held out; four completions of each held-out prompt, at",
        "temperature 1. Intervals of 95 % are over prompts.",
        "",
        "| algorithm | seed | right before | right after | difference | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    order = list(dict.fromkeys(one.algorithm for one in found))
    lines += map(_line, sorted(found, key=lambda one: (order.index(one.algorithm), one.seed)))
    return "\n".join(lines)


def _line(one: Learned) -> str:
    before, after, difference = one.exact.reference, one.exact.policy, one.exact.difference
    return (
        f"| {one.algorithm} | {one.seed} | {before.value:.1%} | {after.value:.1%} ({_interval(after)}) | "
        f"{difference.value:+.1%} ({_interval(difference)}) | {one.seconds:.0f} |"
    )


def _interval(metric: Any) -> str:
    return "—" if metric.ci_low is None else f"{metric.ci_low:.1%} to {metric.ci_high:.1%}"


def main() -> int:
    """Print the table. Returns 1 if an algorithm that learns from rewards ends below 80 %, or DPO gains nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = [*POLICY_ALGORITHMS, _DPO]
    parser.add_argument("--algorithms", nargs="+", choices=known, default=known)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--prompts", type=int, default=1200)
    parser.add_argument(
        "--quick", action="store_true", help="a few steps each, to try this program; they prove nothing"
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    given, measured, found = parser.parse_args(), commit(), list[Learned]()
    for seed in given.seeds:
        with tempfile.TemporaryDirectory(prefix="learning-") as name:
            always = _QUICK if given.quick else ()
            found += learned(Path(name), given.algorithms, seed=seed, count=given.prompts, always=always)
    text = table(found, count=given.prompts)
    print(text)
    if given.write:
        heading = "Exact match"
        if given.algorithms != known:
            heading += f": {', '.join(given.algorithms)} alone"
        title = "Each algorithm learns"
        write_part(PAGE, text, module="benchmarks.learning", title=title, heading=heading, measured=measured)
    missed = [one for one in found if not _has_learned(one)]
    for one in missed:
        print(f"{one.algorithm}, seed {one.seed}: has not learned.", file=sys.stderr)
    return 1 if missed and not given.quick else 0


def _has_learned(one: Learned) -> bool:
    low = one.exact.difference.ci_low
    return low is not None and low > 0 and (one.algorithm == _DPO or one.exact.policy.value >= 0.8)


if __name__ == "__main__":
    sys.exit(main())
