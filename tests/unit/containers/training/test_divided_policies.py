"""A policy that two ranks divide among them writes, learns, resumes and is published as one that each holds whole."""

import json
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.parts.evidence import EvidenceSettings
from containers.contracts.configs.parts.rewards import LengthTerm
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.evidence import Evidence
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import EVIDENCE_FILE, StageName
from containers.contracts.spec import StageSpec
from containers.scoring.scorer import score_head_sha256
from tests.unit.containers.distributed.test_ranks_agree import curve_of, largest_difference, weights_of
from tests.unit.containers.training.test_divided_models import children_of
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import CPU, make_spec, run_stage, start_stage
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = [pytest.mark.stages, pytest.mark.slow]

TOLERANCE = 2e-5
CURVES = ("loss", "grad_norm", "reward", "kl", "entropy", "completion_length")
BATCH = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)
ADAPTERS = TrainPolicyConfig(
    num_generations=4,
    max_prompt_length=64,
    max_completion_length=8,
    lora=LoraSettings(r=4, alpha=8),
    gradient_checkpointing=False,
    optimizer=OptimizerSettings(learning_rate=1e-3),
    schedule=TrainingSchedule(max_steps=8, save_steps=2),
)
ALL = ADAPTERS.model_copy(update={"lora": None, "optimizer": OptimizerSettings(learning_rate=1e-4)})
# Every three steps a look, on 9 and 18 pairs; where it shows no gain, the policy goes back.
LOOKS = EvidenceSettings(
    steps=3,
    num_pairs=9,
    patience=1,
    on_no_gain="roll_back",
    max_roll_backs=1,
    judges=(LengthTerm(name="brevity", target=(0, 4)),),
)
KINDS: dict[str, TrainPolicyConfig] = {
    "adapters, uneven packs, looks": ADAPTERS.model_copy(update={"pack_tokens": 54, "evidence": LOOKS, "beta": 0.1}),
    "adapters, padded rows, plain generate": ADAPTERS.model_copy(
        update={"pack": False, "rollout_engine": "transformers"}
    ),
    "all weights, checkpointing, looks, in host memory": ALL.model_copy(
        update={"gradient_checkpointing": True, "evidence": LOOKS, "beta": 0.1}
    ),
    "all weights, two updates a rollout, no KL": ALL.model_copy(
        update={"rollout_batch_size": 16, "algorithm": "grpo", "beta": 0.0}
    ),
}


@dataclass
class Policies:
    """Trainings in a folder of their own; those that others are compared with are made once."""

    folder: Path
    made: dict[str, Path] = field(default_factory=dict)

    def work(self, kind: str, *, distribution: str) -> Path:
        """The work folder of that training."""
        name = f"{list(KINDS).index(kind)}-{distribution}"
        if name not in self.made:
            spec = self.spec(kind, name, distribution=distribution)
            run_stage(spec, self.folder / f"{name}.log", timeout_s=500)
            self.made[name] = Path(spec.work_path)
        return self.made[name]

    def spec(self, kind: str, name: str, *, distribution: str) -> StageSpec:
        config = KINDS[kind].model_copy(update={"distribution": distribution})
        if "host memory" in kind and distribution == "fsdp":
            offloaded = config.optimizer.model_copy(update={"offload": True})
            config = config.model_copy(update={"offload_frozen": True, "optimizer": offloaded})
        profile = CPU.model_copy(update={"num_processes": 2, "distribution": distribution})
        work = self.folder / name
        work.mkdir()
        return make_spec(work, StageName.TRAIN_POLICY, config, self._inputs(), batch=BATCH, profile=profile)

    def _inputs(self) -> dict[str, Path]:
        start, merged = self.folder / "start", self.folder / "reward_model" / "merged"
        if not start.exists():
            save_causal_model(start, scale=0.02, seed=3)
            save_reward_model(merged)
            # Every third prompt is long, so that two ranks seldom have equally many packs.
            texts = [f"What is {number}? {'And why? ' * 3 * (number % 3 == 0)}" for number in range(40)]
            write_prompts(self.folder / "prompts", train=texts)
            write_certificate(self.folder / "certificate", score_head_sha256=score_head_sha256(merged))
        return {
            "certificate": self.folder / "certificate",
            "prompts": self.folder / "prompts",
            "start_model": start,
            "reward_model": merged.parent,
        }


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(tmp_path_factory.mktemp("divided"))


def notes_of(work: Path) -> str:
    return (work / "events.jsonl").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_divided_policy_becomes_what_a_whole_one_becomes(policies: Policies, kind: str) -> None:
    whole, divided = (policies.work(kind, distribution=how) for how in ("ddp", "fsdp"))
    assert "The model is divided over 2 ranks" in notes_of(divided)
    assert "The model is divided" not in notes_of(whole)
    curves = [curve_of(work / "output", *CURVES) for work in (whole, divided)]
    assert {"reward", "loss", "grad_norm"} <= {name for _, name in curves[0]}
    assert largest_difference(*curves) < TOLERANCE
    assert largest_difference(*(weights_of(work / "output") for work in (whole, divided))) < TOLERANCE
    looked = [work / "output" / EVIDENCE_FILE for work in (whole, divided)]
    if "host memory" in kind:
        assert re.search(r"[1-9][\d.]* [KM]iB of frozen models are in host memory on each rank", notes_of(divided))
    if KINDS[kind].evidence is LOOKS:
        one, other = (Evidence.model_validate_json(file.read_bytes()) for file in looked)
        assert [look.consequence for look in one.looks] == [look.consequence for look in other.looks]
        assert "rolls back" in [look.consequence for look in one.looks]
        assert one.published_step == other.published_step < KINDS[kind].schedule.max_steps


def test_a_killed_training_of_a_divided_policy_goes_on_and_ends_with_the_same_weights(policies: Policies) -> None:
    kind = "all weights, two updates a rollout, no KL"
    whole = policies.work(kind, distribution="fsdp")
    name = f"killed-{list(KINDS).index(kind)}"
    spec = policies.spec(kind, name, distribution="fsdp")
    work = Path(spec.work_path)
    process = start_stage(spec, policies.folder / f"{name}.log")
    deadline = time.monotonic() + 300
    while not (work / "checkpoints/checkpoint-2/checkpoint_manifest.json").exists():
        assert process.poll() is None, (policies.folder / f"{name}.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ranks = children_of(process.pid)
    process.kill()
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    process.wait()
    assert not (work / "outcome.json").exists()
    run_stage(spec, policies.folder / f"{name}-again.log", timeout_s=500)
    info: dict[str, Any] = json.loads((work / "output/training_info.json").read_text())
    assert info["resumed_from_step"] >= 2
    assert largest_difference(weights_of(work / "output"), weights_of(whole / "output")) == 0
