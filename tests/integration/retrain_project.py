"""A tiny project that is retrained through the real command, on real servers, and what its store and MLflow hold."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import yaml
from short_runs import ENVIRONMENT, end

from containers.contracts.names import REPORT_MARKDOWN_FILE
from flows.demo.rows import DemoData, write_demo_data
from flows.servers.logins import own_login
from flows.servers.record import read_record
from tasks.champions.record import ChampionRecord

NAME = "retrained"
CONFIG = f"configs/runs/{NAME}.yaml"
MODEL = f"{NAME}-reward-model"
LABELLED = "evaluate_reward_model.suites=[{name: labelled, path: labelled.jsonl, minimum_accuracy: 0.9}]"

TINY: dict[str, Any] = {
    "run": {"name": NAME, "seed": 5, "store_dir": f"outputs/{NAME}-store"},
    "gpu_profile": "cpu",
    "runtime": {"kind": "process"},
    "dataset": {"train": f"{NAME}/train.jsonl", "validation": f"{NAME}/validation.jsonl"},
    # The demo's prompts are paraphrases of each other.
    "filter_dataset": {"policy_prompt_fraction": 0.35, "policy_eval_prompt_fraction": 0.5, "similar_prompts": "report"},
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
        "lora": {"r": 8, "alpha": 16},
        "gradient_checkpointing": False,
        "optimizer": {"learning_rate": 1.0e-3},
        "schedule": {"max_steps": 60, "eval_steps": 30},
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
        "schedule": {"max_steps": 2, "save_steps": 2},
    },
    "evaluate_policy": {"max_prompt_length": 40, "max_completion_length": 8},
    # Below a coin's: what is certified here is that the retraining compares, not that so few steps teach.
    "gates": {"reward_model": {"minimum_accuracy": 0.25}, "policy": {"minimum_reward_gain": -100}},
    "tracking": {"prefect_port": 0, "mlflow_port": 0},
}


@dataclass(frozen=True)
class Step:
    """What one command said, what the store held before and after, and the newest report after it, as Markdown."""

    said: str
    exit_code: int
    attempts_before: int
    attempts_after: int
    record: ChampionRecord
    report: str

    @property
    def champion(self) -> int:
        assert self.record.champion is not None, self.said
        return self.record.champion.number


class Project:
    """A folder with servers in which the command is run as a schedule or a person would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / NAME
        self.data.mkdir()
        (folder / CONFIG).write_text(yaml.safe_dump(TINY), encoding="utf-8")
        self.good = write_demo_data(folder / "good")
        self.poisoned = write_demo_data(folder / "poisoned", flip_labels=True)
        shutil.copy(self.good.labelled_pairs, folder / "labelled.jsonl")
        self.store = folder / f"outputs/{NAME}-store"

    def use(self, train: str, validation: DemoData) -> None:
        """Put other data in the place that the configuration names."""
        (self.data / "train.jsonl").write_text(train, encoding="utf-8")
        shutil.copy(validation.validation, self.data / "validation.jsonl")

    def noisy(self) -> str:
        """The training rows with every second label the wrong way round, which teach nothing.

        The frozen pairs ask 48 prompts, and prompts are what is counted: less noise would leave too little to see.
        """
        good, bad = (data.train.read_text(encoding="utf-8").splitlines(True) for data in (self.good, self.poisoned))
        return "".join(wrong if row % 2 else right for row, (right, wrong) in enumerate(zip(good, bad, strict=True)))

    def start(self, command: str, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli.main", command, "-c", CONFIG, *options],
            cwd=self.folder,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def take(self, command: str, *options: str) -> Step:
        """Run the command to its end."""
        (step,) = self.take_all([self.start(command, *options)])
        return step

    def take_all(self, started: list[subprocess.Popen[str]]) -> list[Step]:
        before = self.attempts()
        try:
            said = [running.communicate(timeout=600)[0] for running in started]
        finally:
            for running in started:
                end(running)
        assert "Traceback" not in "".join(said), "".join(said)
        return [
            Step(text, running.returncode, before, self.attempts(), self.record(), self.report())
            for text, running in zip(said, started, strict=True)
        ]

    def attempts(self) -> int:
        """How often a stage program was started."""
        return len(list(self.store.glob("attempts/*/*/*")))

    def report(self) -> str:
        """Of the last run that wrote one; run ids begin with the time."""
        newest = max((self.folder / f"outputs/{NAME}/reports").glob(f"*/{REPORT_MARKDOWN_FILE}"))
        return newest.read_text(encoding="utf-8")

    def record(self, name: str = MODEL) -> ChampionRecord:
        path = self.store / "champions" / f"{name}.json"
        return ChampionRecord.model_validate_json(path.read_bytes())

    def server(self, name: str) -> str:
        (entry,) = (server for server in read_record(self.folder / "outputs/.servers").servers if server.name == name)
        return f"http://127.0.0.1:{entry.port}"

    def alias(self, alias: str = "champion") -> str:
        """Our number of the version that MLflow shows under that alias."""
        from mlflow import MlflowClient

        uri = self.server("mlflow")
        return str(
            MlflowClient(tracking_uri=uri, registry_uri=uri)
            .get_model_version_by_alias(MODEL, alias)
            .tags["rlhf.version"]
        )

    def prefect_artifacts(self, key: str) -> list[str]:
        """The texts that Prefect keeps under that key, the newest first."""
        wanted = {"artifacts": {"key": {"any_": [key]}}, "sort": "CREATED_DESC"}
        prefect = f"{self.server('prefect')}/api"
        session = requests.Session()
        session.auth = tuple(own_login(self.folder / "outputs/.servers").split(":", 1))
        token = session.get(f"{prefect}/csrf-token", params={"client": "test"}, timeout=20)
        headers = {"Prefect-Csrf-Token": token.json()["token"], "Prefect-Csrf-Client": "test"}
        answer = session.post(f"{prefect}/artifacts/filter", json=wanted, headers=headers, timeout=20)
        answer.raise_for_status()
        return [item["data"] for item in answer.json()]
