"""Does each algorithm resume bit for bit? One training by each is killed at each kind of moment, another one is not.

    python -m benchmarks.resume [--algorithms …] [--write]

The trainings are those on sums of `benchmarks.learning`, a few steps each, on a CPU. The killed one begins again from
its newest whole checkpoint, as `rlhf run` would begin it, until it is at its end; the moments follow one another.
Weights are compared by sha256, curves number by number.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning import BEFORE, run_of
from benchmarks.provenance import commit
from benchmarks.speed_table import write_part
from containers.contracts.configs.parts.policy_algorithms import POLICY_ALGORITHMS
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES
from containers.contracts.digests import file_sha256
from containers.contracts.names import CURVES_FILE, MODEL_FOLDER, StageName
from containers.launch.process import ProcessRuntime
from containers.report.curves import Curves, is_of_the_clock, read_curves
from flows.demo.sums import write_sums
from tasks.checks.bare_stages import BareStages
from tasks.config.run import RunConfig
from tasks.pipeline.stages import BY_NAME, STAGES, walk

PAGE = Path(__file__).resolve().parents[1] / "docs" / "proofs" / "resume.md"
SFT = "train_sft"
# Every way of training but the reward model's, which `make faults` kills.
ALGORITHMS = (
    SFT,
    *(f"train_policy {name}" for name in POLICY_ALGORITHMS),
    *(f"train_dpo {name}" for name in PREFERENCE_LOSSES),
)
# Steps of each training, and after how many it saves.
_STEPS, _SAVES = 6, 2
_ON_REWARDS = (("rollout", 1), ("step", 4), ("save", 4), ("manifest", 6), ("end", 6))
# Four updates for each rollout, with the policy at rest in the first three steps.
_WITH_CRITIC = (
    ("rollout", 1),
    ("scoring", 1),
    ("critic", 2),
    ("step", 3),
    ("save", 4),
    ("look", 2),
    ("step", 6),
    ("manifest", 6),
    ("end", 6),
)
_OF_PPO = (
    "train_policy.rollout_batch_size=32",
    "train_policy.num_iterations=2",
    # A judge that is no reward looks at it, in the middle of a rollout too.
    "evaluate_policy.judges=[{type: exact}]",
    "train_policy.evidence={steps: 3, on_no_gain: note, num_prompts: 16, num_pairs: 8}",
    "train_policy.critic={warmup_steps: 3, minimum_explained_variance: 1.0, learning_rate: 1.0e-3}",
)
_ON_ROWS = (("step", 2), ("evaluation", 2), ("step", 4), ("save", 4), ("manifest", 6), ("end", 6))
_SCHEDULE = f"schedule: {{max_steps: {_STEPS}, save_steps: {_SAVES}"
_FEW_ROWS = 200


@dataclass(frozen=True)
class Resumed:
    """A training that was killed, beside one that was not.

    Attributes:
        moments: at which it was killed.
        num_starts: how often its program was started.
    """

    algorithm: str
    moments: tuple[str, ...]
    num_starts: int
    weights_are_equal: bool
    curves_are_equal: bool
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether nothing of the result shows that it was killed."""
        return self.weights_are_equal and self.curves_are_equal


class Mortal(BareStages):
    """Starts a stage's program so that it kills itself at one moment."""

    moment: tuple[str, int] | None = None

    @property
    def runtime(self) -> ProcessRuntime:
        """The runtime that starts it."""
        if self.moment is None:
            return ProcessRuntime()
        name, step = self.moment
        return ProcessRuntime(command=(sys.executable, "-m", "benchmarks.killed_stage", name, str(step)))


def resumed(folder: Path, algorithm: str, made: dict[str, Any], *, seed: int) -> Resumed:
    """Train by that algorithm, undisturbed and killed, from the same start; compare."""
    began, (stage_name, _, name) = time.monotonic(), algorithm.partition(" ")
    run, stage = _run(folder, stage_name, name, seed=seed), BY_NAME[StageName(stage_name)]
    if stage.name is StageName.TRAIN_DPO and run.takes_part(StageName.COMPUTE_REFERENCE):
        reference = Mortal(run, folder, way=algorithm, limit_s=600, report=_say)
        made = {**made, "reference": reference.made(BY_NAME[StageName.COMPUTE_REFERENCE], made)}
    whole = Mortal(run, folder, way=f"{algorithm} undisturbed", limit_s=600, report=_say).made(stage, made)
    mortal = Mortal(run, folder, way=f"{algorithm} killed", limit_s=600, report=_say)
    moments: tuple[tuple[str, int], ...] = _ON_ROWS
    if stage.name is StageName.TRAIN_POLICY:
        moments = _WITH_CRITIC if run.train_policy.has_critic else _ON_REWARDS
    for moment in moments:
        mortal.moment = moment
        if mortal.attempt(stage, made) is not None:
            raise RuntimeError(f"{algorithm}: its program ended well, and should have died in {moment}.")
    mortal.moment = None
    again = mortal.made(stage, made)
    folders = [Path(artifact.path) for artifact in (whole, again)]
    weights = [file_sha256(place / MODEL_FOLDER / "model.safetensors") for place in folders]
    curves = [read_curves(place / CURVES_FILE) for place in folders]
    return Resumed(
        algorithm,
        tuple(f"{kind} {step}" for kind, step in moments),
        len(moments) + 1,
        weights[0] == weights[1],
        _numbers(curves[0]) == _numbers(curves[1]),
        time.monotonic() - began,
    )


def start_of(folder: Path, *, seed: int) -> dict[str, Any]:
    """Make what the trainings start from: rows, and a small model."""
    write_sums(folder, seed=seed, count=_FEW_ROWS)
    run = _run(folder, SFT, "", seed=seed)
    made: dict[str, Any] = {"checked": None}
    stages = tuple(stage for stage in STAGES if stage.name in BEFORE and stage.name is not StageName.TRAIN_SFT)
    for _ in walk(run, BareStages(run, folder, limit_s=600, report=_say), made=made, stages=stages):
        pass
    return made


def _run(folder: Path, stage: str, name: str, *, seed: int) -> RunConfig:
    changes = [
        f"train_sft={{completions: both, global_batch_size: 16, max_length: 64, {_SCHEDULE}, eval_steps: {_SAVES}}}}}",
        f"train_policy.algorithm={name if stage == 'train_policy' else 'grpo'}",
        "train_policy.global_batch_size=16",
        "train_policy.num_generations=4",
        f"train_policy.{_SCHEDULE.replace(': {', '={', 1)}}}",
        # The start knows nothing, so exact match would give no signal.
        "train_policy.rewards=[{type: regex, pattern: '[0-4a-m]', kind: outcome}]",
        "train_policy.max_steps_without_signal=100",
    ]
    if stage == "train_policy" and POLICY_ALGORITHMS[name].advantage == "gae":
        changes += _OF_PPO
    if stage == "train_dpo":
        changes.append(
            f"train_dpo={{loss: {name}, global_batch_size: 16, max_length: 64, lora: {{r: 4, alpha: 8}}, "
            f"gradient_checkpointing: false, {_SCHEDULE}, eval_steps: {_SAVES}}}}}"
        )
        changes += ["train_reward_model={max_length: 64, lora: {r: 8}}", "evaluate_reward_model.max_length=64"]
    return run_of(folder, *changes, seed=seed)


def _numbers(curves: Curves) -> dict[str, tuple[tuple[int, float], ...]]:
    """The curves without those of the clock."""
    return {name: points for name, points in curves.points.items() if not is_of_the_clock(name)}


def _say(figures: dict[str, Any]) -> None:
    failed = "" if figures["ok"] else "killed"
    print(f"{figures['stage']} {figures['way']}: {figures['seconds']} s {failed}".rstrip(), flush=True)


def table(found: Sequence[Resumed]) -> str:
    """Return a line for each algorithm."""
    lines = [
        f"{_STEPS} steps, a checkpoint after every {_SAVES}; each kill is SIGKILL of the program itself: in a rollout",
        "(completions written, nothing learnt), in a step (gradients there, no weight changed), in an evaluation, in a",
        "save (model written, optimizer not), before a checkpoint's manifest, before the artifact's manifest.",
        "",
        "| training | killed in | programs started | weights | curves | seconds |",
        "|---|---|---:|---|---|---:|",
    ]
    words = {True: "equal", False: "**differ**"}
    lines += [
        f"| {one.algorithm} | {', '.join(one.moments)} | {one.num_starts} | {words[one.weights_are_equal]} | "
        f"{words[one.curves_are_equal]} | {one.seconds:.0f} |"
        for one in found
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the table; returns 1 if a result differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    given, measured = parser.parse_args(), commit()
    with tempfile.TemporaryDirectory(prefix="resume-") as name:
        made = start_of(Path(name), seed=given.seed)
        found = [resumed(Path(name), one, made, seed=given.seed) for one in given.algorithms]
    text = table(found)
    print(text)
    if given.write:
        title, heading = "Each algorithm resumes bit for bit", "Killed and not killed"
        write_part(PAGE, text, module="benchmarks.resume", title=title, heading=heading, measured=measured)
    return 0 if all(one.is_exact for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
