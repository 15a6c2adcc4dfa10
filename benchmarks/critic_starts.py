"""Does PPO learn, and does a critic that starts as the reward model save steps? On sums, with a reward model of pairs.

Every stage is run by its own program. Fine-tuning imitates right and wrong answers alike, a reward model learns from
pairs which are right, and PPO trains the fine-tuned model by that reward model alone. The critic starts as the reward
model, as the fine-tuned model with a new score head, or as a score head on the policy's own states. How many
completions are right is shown beside it; the training never knows.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.gpu.stages import say
from benchmarks.learning import PAGE, run_of
from benchmarks.provenance import commit
from benchmarks.speed_table import write_part
from containers.contracts.configs.parts.critic import CriticModel
from containers.contracts.names import (
    CERTIFICATE_FILE,
    CURVES_FILE,
    POLICY_EVALUATION_FILE,
    StageName,
)
from containers.contracts.records import JudgeFigures, PolicyEvaluation
from flows.demo.sums import write_sums
from tasks.checks.bare_stages import BareStages
from tasks.pipeline.stages import BY_NAME, STAGES, walk

GRPO = "grpo, no critic"
STARTS: dict[str, CriticModel] = {
    "ppo, critic from the reward model": "reward_model",
    "ppo, critic from the start model": "start_model",
    "ppo, score head on the policy": "policy_features",
}
BEFORE = (
    StageName.FILTER_DATASET,
    StageName.FILTER_PROMPTS,
    StageName.BUILD_BASE_MODEL,
    StageName.TRAIN_SFT,
    StageName.TRAIN_REWARD_MODEL,
    StageName.EVALUATE_REWARD_MODEL,
)
_ALWAYS = (
    "filter_dataset.policy_prompt_fraction=0.0",
    "train_reward_model={max_length: 64, global_batch_size: 64, lora: {r: 16, alpha: 32}, "
    "gradient_checkpointing: false, optimizer: {learning_rate: 3.0e-3}, schedule: {num_epochs: 4}}",
    "evaluate_reward_model={max_length: 64, batch_size: 128}",
    "train_policy.rewards=[{type: reward_model, normalise: validation}]",
    "train_policy.evidence=null",
    "evaluate_policy.judges=[{type: exact}]",
)
_CRITIC = "train_policy.critic={{model: {model}, learning_rate: 1.0e-3, warmup_steps: 20}}"
# A reward, in standard deviations of the validation pairs' scores, and over how many steps it is the mean.
_LEVEL, _WINDOW = 0.8, 5
_LAST = 20
_QUICK = (
    "train_sft.schedule={max_steps: 6, eval_steps: 6}",
    "train_reward_model.schedule={max_steps: 2, eval_steps: 2, save_steps: 2}",
    "train_policy.schedule={max_steps: 30, save_steps: 30}",
)


@dataclass(frozen=True)
class Trained:
    """What one way to train made of the start model of one seed.

    Attributes:
        steps: until the reward was so high; None: never.
        explained_first: variance of the rewards that the critic explained at its first step; None without a critic.
        explained_last: the same over the last steps.
    """

    way: str
    seed: int
    accuracy: float
    exact: JudgeFigures
    steps: int | None
    explained_first: float | None
    explained_last: float | None


def trained(folder: Path, *, seed: int, count: int, always: Sequence[str]) -> Iterator[Trained]:
    """Train the start and the reward model, then each way from them, and judge it."""
    write_sums(folder, seed=seed, count=count)
    run = run_of(folder, *always, seed=seed)
    made: dict[str, Any] = {"checked": None}
    stages = BareStages(run, folder, limit_s=1800, report=say)
    for _ in walk(run, stages, made=made, stages=tuple(stage for stage in STAGES if stage.name in BEFORE)):
        pass
    text = (stages.artifacts[StageName.EVALUATE_REWARD_MODEL] / CERTIFICATE_FILE).read_text(encoding="utf-8")
    accuracy = float(json.loads(text)["suites"][0]["accuracy"]["value"])
    for way in (*STARTS, GRPO):
        own = ["train_policy.algorithm=grpo"]
        if way in STARTS:
            own = ["train_policy.algorithm=ppo", "train_policy.num_generations=1", _CRITIC.format(model=STARTS[way])]
        stages = BareStages(run_of(folder, *always, *own, seed=seed), folder, way=way, limit_s=1800, report=say)
        policy = stages.made(BY_NAME[StageName.TRAIN_POLICY], made)
        written = stages.made(BY_NAME[StageName.SAMPLE_COMPLETIONS], {**made, "policy": policy})
        judged = stages.made(BY_NAME[StageName.EVALUATE_POLICY], {**made, "policy": policy, "completions": written})
        evaluation = PolicyEvaluation.model_validate_json((Path(judged.path) / POLICY_EVALUATION_FILE).read_bytes())
        (exact,) = evaluation.judges
        explained = _curve(Path(policy.path) / CURVES_FILE, "explained_variance")
        yield Trained(
            way,
            seed,
            accuracy,
            exact,
            steps_to(_curve(Path(policy.path) / CURVES_FILE, "reward")),
            explained[0] if explained else None,
            fmean(explained[-_LAST:]) if explained else None,
        )


def steps_to(rewards: Sequence[float]) -> int | None:
    """Return after how many steps the mean of the last ones reached the level; None: never."""
    ends = range(_WINDOW, len(rewards) + 1)
    return next((end for end in ends if fmean(rewards[end - _WINDOW : end]) >= _LEVEL), None)


def _curve(file: Path, name: str) -> list[float]:
    points = (json.loads(line)["values"] for line in file.read_text(encoding="utf-8").splitlines())
    return [float(values[name]) for values in points if name in values]


def table(found: Sequence[Trained], *, count: int) -> str:
    """Return a line for each way and seed, and for each way the steps of all seeds."""
    accuracies = ", ".join(f"{one.accuracy:.1%}" for one in found if one.way == GRPO)
    lines = [
        f"{count:,} prompts, of which a part is held out; the reward model's accuracy on its test pairs is",
        f"{accuracies}. It alone gives the rewards. Steps are updates of 64 completions, those of",
        f"warm-up included, until the mean reward of {_WINDOW} steps is {_LEVEL:g} standard deviations of the",
        "scores of validation pairs. Explained variance: 1 less the share of the rewards' variance that",
        "the critic missed. How many completions are right, by exact match, the training does not know:",
        "where that falls while the reward rises, the policy has learnt what the reward model has wrong.",
        "",
        "| way | seed | right before | right after | steps | explained at first | in the last steps |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    order = list(dict.fromkeys(one.way for one in found))
    lines += map(_line, sorted(found, key=lambda one: (order.index(one.way), one.seed)))
    return "\n".join(lines)


def _line(one: Trained) -> str:
    before, after = one.exact.reference, one.exact.policy
    assert before is not None and after is not None  # an exact judge knows them
    interval = f"{after.ci_low:.1%} to {after.ci_high:.1%}"
    shares = (f"{share:.0%}" if share is not None else "–" for share in (one.explained_first, one.explained_last))
    return (
        f"| {one.way} | {one.seed} | {before.value:.1%} | {after.value:.1%} ({interval}) "
        f"| {one.steps or 'never'} | {' | '.join(shares)} |"
    )


def main() -> int:
    """Print the table. Returns 1 if PPO whose critic is the reward model misses the reward, or half of the variance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--prompts", type=int, default=1200)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other settings, to look around")
    parser.add_argument(
        "--quick", action="store_true", help="a few steps each, to try this program; they prove nothing"
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    given, measured, found = parser.parse_args(), commit(), list[Trained]()
    always = (*_ALWAYS, *(_QUICK if given.quick else ()), *given.set)
    for seed in given.seeds:
        with tempfile.TemporaryDirectory(prefix="critic-") as name:
            for one in trained(Path(name), seed=seed, count=given.prompts, always=always):
                found.append(one)
                print(_line(one), flush=True)
    text = table(found, count=given.prompts)
    print(text)
    if given.write:
        heading = "PPO, and how its critic starts"
        write_part(
            PAGE,
            text,
            module="benchmarks.critic_starts",
            title="Each algorithm learns",
            heading=heading,
            measured=measured,
        )
    missed = [one for one in found if STARTS.get(one.way) == "reward_model" and not _has_learned(one)]
    for one in missed:
        print(f"{one.way}, seed {one.seed}: has not learned.", file=sys.stderr)
    return 1 if missed and not given.quick else 0


def _has_learned(one: Trained) -> bool:
    return one.steps is not None and (one.explained_last or 0.0) > 0.5


if __name__ == "__main__":
    sys.exit(main())
