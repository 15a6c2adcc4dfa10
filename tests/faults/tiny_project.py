"""A project folder with a pipeline so small that a fault can be put into every part of it within a minute."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from containers.contracts.digests import content_digest, verify_artifact
from containers.contracts.names import StageName
from containers.report.curves import is_of_the_clock
from flows.demo.rows import write_demo_data

DRIVER = Path(__file__).with_name("drive_stages.py")
# Nobody listens there, so MLflow costs no time in tests that are not about it; what it misses waits on disk.
NO_MLFLOW = "http://127.0.0.1:9"

# Too few steps to learn anything: faults are about going on, not about being good. Saves every 5 steps.
TINY: dict[str, Any] = {
    "run": {"name": "tiny", "seed": 5},
    "gpu_profile": "cpu",
    "runtime": {"kind": "process", "retry_wait_s": 0.5},
    "dataset": {"train": "data/train.jsonl", "validation": "data/validation.jsonl"},
    "filter_dataset": {"policy_prompt_fraction": 0.35, "policy_eval_prompt_fraction": 0.5},
    "build_base_model": {
        "num_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "vocabulary_size": 480,
    },
    "train_reward_model": {
        "global_batch_size": 16,
        "max_length": 64,
        "use_margin": False,
        "lora": {"r": 8, "alpha": 16},
        "gradient_checkpointing": False,
        "optimizer": {"learning_rate": 1.0e-3},
        "schedule": {"max_steps": 40, "eval_steps": 5, "save_steps": 5},
    },
    "evaluate_reward_model": {"max_length": 64, "batch_size": 64},
    "train_policy": {
        "global_batch_size": 8,
        "num_generations": 4,
        "max_prompt_length": 40,
        "max_completion_length": 8,
        "lora": {"r": 8, "alpha": 16},
        "gradient_checkpointing": False,
        "optimizer": {"learning_rate": 1.0e-3},
        "schedule": {"max_steps": 12, "save_steps": 3},
    },
    "evaluate_policy": {"max_prompts": 8, "max_prompt_length": 40, "max_completion_length": 8},
    "gates": {
        name: {"waive": {"by": "the fault tests", "reason": "so few steps teach nothing"}}
        for name in ("reward_model", "policy")
    },
    "tracking": {"prefect_port": 0, "mlflow_port": 0},
}

# A stage that the tiny pipeline leaves out, as an override that adds it.
WITH_SFT = "train_sft=" + json.dumps(
    {
        "global_batch_size": 16,
        "max_length": 64,
        "optimizer": {"learning_rate": 1.0e-3},
        "schedule": {"max_steps": 40, "eval_steps": 5, "save_steps": 5},
    }
)


@dataclass
class Driven:
    """A started command, its lines as they come, and its whole output in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON lines of `drive_stages.py`."""
        return [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]

    @property
    def statuses(self) -> dict[str, str]:
        """Stage → what became of it, of those that ended."""
        return {event["ended"]: event["status"] for event in self.events if "ended" in event}

    def wait(self, timeout_s: float = 300) -> int:
        """The exit code."""
        return self.process.wait(timeout=timeout_s)

    def kill(self) -> None:
        """`kill -9` of the command alone; what it started is left to its own fate."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)


@dataclass(frozen=True)
class TinyProject:
    """A folder in which commands are run as a user would."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, project: Path) -> "TinyProject":
        """Write data and configuration."""
        shutil.copytree(project / "configs", folder / "configs")
        write_demo_data(folder / "data")
        (folder / "configs/runs/tiny.yaml").write_text(yaml.safe_dump(TINY))
        return cls(folder)

    def drive(
        self,
        stage: StageName,
        *overrides: str,
        environment: dict[str, str] | None = None,
        hold: StageName | None = None,
    ) -> Driven:
        """Start the stages up to `stage`, without a Prefect server; `hold` is stopped before it writes its manifest."""
        command = [sys.executable, str(DRIVER), "configs/runs/tiny.yaml", stage.value]
        command += ["--hold", hold.value] if hold else []
        return self._start(command, overrides, environment)

    def rlhf(
        self, *overrides: str, config: str = "configs/runs/tiny.yaml", environment: dict[str, str] | None = None
    ) -> Driven:
        """Start `rlhf run`, with its servers."""
        command = [sys.executable, "-m", "flows.cli.main", "run", "-c", config]
        return self._start(command, overrides, {"MLFLOW_TRACKING_URI": "", **(environment or {})})

    def _start(self, command: Sequence[str], overrides: Sequence[str], environment: dict[str, str] | None) -> Driven:
        sets = [word for override in overrides for word in ("--set", override)]
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        output = logs / f"{len(list(logs.iterdir())):03d}.log"
        values = {"MLFLOW_TRACKING_URI": NO_MLFLOW, "PYTHONUNBUFFERED": "1", **(environment or {})}
        variables = {name: value for name, value in {**os.environ, **values}.items() if value}
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*command, *sets], cwd=self.folder, env=variables, stdout=stream, stderr=subprocess.STDOUT
            )
        return Driven(process, output)

    def copy_finished(self, stages: Sequence[StageName], *, source: str, target: str) -> None:
        """Give a store the finished artifacts of another, so that a test makes only what it is about."""
        for stage in stages:
            shutil.copytree(
                self.folder / "outputs" / source / "artifacts" / stage,
                self.folder / "outputs" / target / "artifacts" / stage,
                dirs_exist_ok=True,
            )

    def work_of(self, stage: StageName, *, store: str = "store") -> Path | None:
        """The work folder of the newest attempt at that stage in a store below outputs/."""
        folder = self.folder / "outputs" / store
        specs = folder.glob(f"attempts/{stage}/*/attempt-*/spec.json")
        newest = max(specs, key=lambda path: path.stat().st_mtime_ns, default=None)
        return None if newest is None else folder / "work" / stage / newest.parents[1].name

    def wait_for_step(
        self, stage: StageName, step: int, *, of: Driven, store: str = "store", timeout_s: float = 300
    ) -> Path:
        """Wait until the stage has recorded that optimizer step. Returns its work folder."""

        def reached() -> Path | None:
            work = self.work_of(stage, store=store)
            return work if work and recorded_step(work) >= step else None

        found: Path = wait_for(reached, of=of, timeout_s=timeout_s, what=f"{stage} at step {step}")
        return found

    def artifact(self, stage: StageName, run_name: str = "tiny") -> Path:
        """What the run made or reused last."""
        return (self.folder / "outputs" / run_name / "artifacts" / stage).resolve()

    def content_of(self, stage: StageName, run_name: str = "tiny") -> str:
        """Digest over what that artifact holds, which matches its manifest."""
        return content_digest(verify_artifact(self.artifact(stage, run_name)).files)


def wait_for(
    value: Callable[[], Any], *, of: Driven | None = None, timeout_s: float = 60, what: str = "the condition"
) -> Any:
    """The first true value; fails at once where the command ended before."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := value():
            return found
        if of is not None and of.process.poll() is not None:
            raise AssertionError(f"The command ended with {of.process.returncode} before {what}:\n{of.text[-4000:]}")
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {timeout_s} s:\n{of.text[-4000:] if of else ''}")


def recorded_step(work: Path) -> int:
    """The last optimizer step in the events; -1 before the first."""
    return max((step for step, _ in curve_points(work / "events.jsonl")), default=-1)


def recorded_steps(work: Path) -> list[int]:
    """The steps in the order in which they were recorded, training steps only: a repeated step is there twice."""
    return [step for step, values in curve_points(work / "events.jsonl") if "loss" in values or "reward" in values]


def curve_points(events: Path) -> list[tuple[int, dict[str, float]]]:
    """Steps and values of every whole metrics line."""
    return [(event["step"], event["values"]) for event in whole_events(events) if event["type"] == "metrics"]


def notes(work: Path) -> list[str]:
    """What the stage said for people."""
    return [event["text"] for event in whole_events(work / "events.jsonl") if event["type"] == "note"]


def whole_events(path: Path) -> list[dict[str, Any]]:
    """Every whole line of an events file, in the order in which they were written; none where there is no file."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def weights_digest(artifact: Path) -> str:
    """sha256 over all weights of an artifact, adapter and merged: equal for bit-exact training."""
    digest = hashlib.sha256()
    files = sorted(artifact.rglob("*.safetensors"))
    assert files, f"no weights in {artifact}"
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def curves(artifact: Path) -> dict[int, dict[str, float]]:
    """Step → values of curves.jsonl, without those of clock and memory, which differ from run to run."""
    merged: dict[int, dict[str, float]] = {}
    for step, values in curve_points(artifact / "curves.jsonl"):
        kept = {name: value for name, value in values.items() if not (is_of_the_clock(name) or "memory" in name)}
        merged.setdefault(step, {}).update(kept)
    return merged


def wait_for_held(driven: Driven) -> psutil.Process:
    """The stage program that has stopped itself."""

    def held() -> psutil.Process | None:
        for child in psutil.Process(driven.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.status() == psutil.STATUS_STOPPED:
                    return child
        return None

    found: psutil.Process = wait_for(held, of=driven, timeout_s=300, what="the held stage")
    return found


def stage_processes(of: int) -> Iterator[psutil.Process]:
    """Stage programs below a process, in any depth; not their supervisor, whose command names them."""
    for child in psutil.Process(of).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(child.cmdline())
            if "containers.stages.entry" in command and "containers.harness.supervisor" not in command:
                yield child


def wait_for_end(processes: Sequence[psutil.Process]) -> None:
    """Return when all of them are gone, as they go without their orchestrator; a zombie is nobody's program."""

    def all_gone() -> bool:
        return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)

    wait_for(all_gone, what="the end of the stage, whose orchestrator is dead,")
