"""The commands of `rlhf` with their line in `--help`. A command's module is imported when the command is called."""

from collections.abc import Mapping
from dataclasses import dataclass

DEMO_CONFIG = "configs/runs/demo.yaml"
_DEMO = f"-c {DEMO_CONFIG}"
_PRODUCTION = "-c configs/runs/helpsteer3-qwen3-8b.yaml"


@dataclass(frozen=True)
class ListedCommand:
    """A command as `--help` lists it.

    Attributes:
        place: `module:attribute` of its `flows.cli.options.Command`, below this folder.
        example: its arguments in an example.
    """

    place: str
    summary: str
    example: str


COMMANDS: Mapping[str, ListedCommand] = {
    "run": ListedCommand("run:RUN", "run the pipeline; finished stages are reused", f"{_DEMO} --set run.seed=7"),
    "check": ListedCommand(
        "inspect:CHECK",
        "check GPUs, Docker, memory, disk, servers, model and data; start nothing",
        _PRODUCTION,
    ),
    "plan": ListedCommand(
        "inspect:PLAN",
        "show stages, steps, estimated memory, time and disk; needs no GPU and no network",
        f"{_PRODUCTION} --profile 1x48gb",
    ),
    "report": ListedCommand("inspect:REPORT", "print the path of the last report, and open it", _DEMO),
    "step": ListedCommand(
        "step:STEP",
        "show what the policy wrote in one step of its training, with rewards by part and advantages",
        f"{_DEMO} 40",
    ),
    "ui": ListedCommand("inspect:UI", "run Prefect and MLflow, to look at past runs", _DEMO),
    "keys": ListedCommand(
        "keys:KEYS", "list every key of a run's configuration: type, default, what it does", "train_policy"
    ),
    "fetch": ListedCommand(
        "machine:FETCH",
        "download a run's models and data beforehand, by its token and mirror; say what a run would still ask the hub",
        f"{_PRODUCTION} --dry-run",
    ),
    "doctor": ListedCommand(
        "machine:DOCTOR",
        "measure how the ranks of the GPU profile reach each other here, and how much shared memory they use",
        f"{_DEMO} --profile 4x48gb",
    ),
    "selftest": ListedCommand(
        "machine:SELFTEST",
        "measure a machine as the stages find it: cards, memory, kernels, ranks, steps of the run's own trainings, a "
        "resume; one table, one file; `rlhf plan` then knows its speeds",
        f"{_DEMO} --profile 1x80gb",
    ),
    "serve": ListedCommand(
        "serve:SERVE",
        "start both servers, offer forms in Prefect that start runs, and execute these runs",
        "--configs configs/runs",
    ),
    "pod-template": ListedCommand(
        "serve:POD_TEMPLATE",
        "print the job template of a Kubernetes work pool, with the limits of a GPU profile",
        f"{_PRODUCTION} --profile 8x80gb --image registry.example/rlhf-pod:1 --claim rlhf",
    ),
    "approve": ListedCommand(
        "approve:APPROVE",
        "show what waits for a person at a gate, or decide",
        f"{_DEMO} --gate reward_model --approve --by Ada",
    ),
    "judge": ListedCommand(
        "judge:JUDGE",
        "judge pairs of answers of a run blind, as one of its evaluate_policy.judges",
        f"{_DEMO} --by ada",
    ),
    "arms": ListedCommand(
        "arms:ARMS",
        "run several arms of a comparison, sharing what they share, and compare their policies with each other",
        "-c configs/arms/sums.yaml",
    ),
    "retrain": ListedCommand(
        "retrain:RETRAIN",
        "train a challenger on the newest data; it becomes champion only if it is better beyond chance",
        _DEMO,
    ),
    "champion": ListedCommand(
        "champion:CHAMPION", "show the champion of a run, its challengers, and every decision with its figures", _DEMO
    ),
    "promote": ListedCommand(
        "champion:PROMOTE",
        "make a version champion by hand; the history says who and why",
        f"{_DEMO} --version 2 --by Ada --reason 'wins in our own red-teaming'",
    ),
    "rollback": ListedCommand(
        "champion:ROLLBACK",
        "bring back the champion before the present one; the history says who and why",
        f"{_DEMO} --by Ada --reason 'rewards flattery'",
    ),
    "certify": ListedCommand(
        "certify:CERTIFY",
        "judge a reward model on disk or on the hub by a run's data, suites and gate, wherever it was trained",
        f"-m outputs/demo/artifacts/train_reward_model/merged {_DEMO}",
    ),
    "score": ListedCommand(
        "score:SCORE",
        "score any file with any reward model: pairs, conversations, prompts with one response or several",
        "-m outputs/demo outputs/demo/data/labelled_pairs.jsonl",
    ),
    "compare": ListedCommand(
        "compare:COMPARE",
        "compare certificates of reward models, each with the first, and say which differences may be chance",
        "outputs/helpsteer3-qwen3-8b outputs/higher-lr",
    ),
    "demo-data": ListedCommand(
        "demo_data:DEMO_DATA", "write the synthetic preferences of the demo", "--folder outputs/demo/data --seed 0"
    ),
    "reap": ListedCommand(
        "inspect:REAP",
        "stop and remove the containers of runs that died; each run also does this when it starts",
        "--dry-run",
    ),
    "cache": ListedCommand(
        "cache:CACHE",
        "list what stages made, compare it with its manifests, delete what no run wants",
        "gc --older-than 14",
    ),
}
