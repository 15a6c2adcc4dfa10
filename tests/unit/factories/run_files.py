"""A small valid run as a YAML file, for tests that break it in one place."""

from pathlib import Path

import yaml

PROFILE = {
    "name": "small",
    "num_gpus": 0,
    "precision": "float32",
    "tf32": False,
    "default_global_batch_size": 8,
    "max_per_device_batch_size": 4,
}


def run_tree(**sections: object) -> dict[str, object]:
    """A valid run; a section given here replaces the one of that name, None leaves it out."""
    tree: dict[str, object] = {
        "run": {"name": "small"},
        "gpu_profile": PROFILE,
        "dataset": {"train": "train.jsonl", "validation": "validation.jsonl"},
        "build_base_model": {},
        "train_reward_model": {"lora": {"r": 8}},
        "train_policy": {"lora": {"r": 8}, "schedule": {"max_steps": 30}},
    }
    tree.update(sections)
    return {key: value for key, value in tree.items() if value is not None}


def write_run(folder: Path, **sections: object) -> Path:
    """`run_tree` as a file."""
    return write_text(folder, yaml.safe_dump(run_tree(**sections), sort_keys=False))


def write_text(folder: Path, text: str) -> Path:
    """A file `run.yaml` with that text."""
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path
