"""vLLM itself, on a CPU: it writes what the policy would with its present adapters, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.contracts.spec import StageSpec
from containers.contracts.stage_configs import (
    LoraSettings,
    OptimizerSettings,
    TrainingSchedule,
    TrainPolicyConfig,
)
from containers.stages.errors import StageError
from containers.stages.models import peft_config
from containers.stages.packed_logps import causal_of
from containers.stages.scoring import score_head_sha256
from containers.stages.vllm_rollouts import ADAPTERS_FOLDER, VllmEngine, start_vllm
from tests.unit.stages.certificate_factory import write_certificate
from tests.unit.stages.prompt_factory import write_prompts
from tests.unit.stages.spec_factory import CPU, make_context, make_spec, run_stage, start_stage
from tests.unit.stages.test_group_generation import PAD, rows
from tests.unit.stages.test_ranks_agree import TOLERANCE, curve_of, largest_difference
from tests.unit.stages.tiny_policy import save_reward_model, tiny_tokenizer

pytestmark = [pytest.mark.stages, pytest.mark.vllm]

LENGTHS = (5, 40, 90)
NEW_TOKENS = 10
NO_END = 500
CONFIG = TrainPolicyConfig(
    num_generations=4,
    max_prompt_length=100,
    max_completion_length=NEW_TOKENS,
    lora=LoraSettings(r=4, alpha=8),
    rollout_engine="vllm",
    optimizer=OptimizerSettings(learning_rate=5e-3, scheduler="constant"),
    schedule=TrainingSchedule(max_steps=4, save_steps=2),
)
LONGER = TrainingSchedule(max_steps=60, save_steps=2)


def save_start_model(folder: Path) -> Path:
    """A tiny Qwen3 with heads as wide as vLLM's kernels for a CPU want them."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(2)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@dataclass
class Started:
    """vLLM with a start model, and the policy that is trained from it."""

    engine: VllmEngine
    policy: PeftModel

    def train(self, seed: int) -> None:
        """Some step or other: all adapters are others than before."""
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in self.policy.parameters():
                if weight.requires_grad:
                    weight += 0.1 * torch.randn_like(weight)

    def generated(self, batch: dict[str, Tensor], **more: Any) -> Tensor:
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": PAD, "eos_token_id": NO_END}
        torch.manual_seed(5)
        tokens: Tensor = self.policy.generate(**batch, generation_config=GenerationConfig(**{**settings, **more}))
        return tokens

    def by_vllm(self, batch: dict[str, Tensor], **more: Any) -> Tensor:
        with self.engine.writing(self.policy):
            return self.generated(batch, **more)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("vllm")
    start = save_start_model(folder / "start")
    model = AutoModelForCausalLM.from_pretrained(start)
    context = make_context(folder, StageName.TRAIN_POLICY, CONFIG, {"start_model": start})
    prompts = [list(range(10, 10 + length)) for length in LENGTHS]
    engine = start_vllm(context, CONFIG, model, prompts)
    yield Started(engine, get_peft_model(model, peft_config(CONFIG.lora, task_type="CAUSAL_LM")))
    engine.close()


def test_greedy_completions_are_the_policys_after_every_step(started: Started) -> None:
    batch = rows([(length, 2) for length in LENGTHS])
    written = []
    for seed in range(3):
        started.train(seed)
        written.append(started.by_vllm(batch))
        assert torch.equal(written[-1], started.generated(batch))
    assert not torch.equal(written[0], written[1])


def test_a_completion_that_ended_is_filled_up(started: Started) -> None:
    batch = rows([(length, 2) for length in LENGTHS])
    ends = started.generated(batch)[:2, -NEW_TOKENS + 1].unique().tolist()
    written = started.by_vllm(batch, eos_token_id=ends)
    assert written.tolist() == started.generated(batch, eos_token_id=ends).tolist()
    assert (written[:, -1] == PAD).any()


def test_siblings_are_drawn_apart_and_the_same_seed_draws_them_again(started: Started) -> None:
    batch = rows([(length, 4) for length in LENGTHS])
    drawn = [started.by_vllm(batch, do_sample=True, temperature=1.2, top_p=0.95, top_k=0) for _ in range(2)]
    assert torch.equal(*drawn)
    completions = [tuple(row) for row in drawn[0][:, -NEW_TOKENS:].tolist()]
    assert len(set(completions)) == len(completions)


def test_tokens_are_drawn_as_often_as_they_are_likely(started: Started) -> None:
    """The share of each first token is its probability, within five standard errors."""
    siblings, times = 12, 120
    batch = rows([(9, 1)])
    with torch.no_grad():
        wanted = torch.softmax(started.policy(**batch).logits[0, -1].float() / 1.5, dim=-1)
    many = {name: value.expand(siblings, -1) for name, value in batch.items()}
    settings = GenerationConfig(
        max_new_tokens=1, eos_token_id=NO_END, pad_token_id=PAD, do_sample=True, temperature=1.5, top_k=0, top_p=1.0
    )
    torch.manual_seed(0)
    with started.engine.writing(started.policy):
        drawn = [started.policy.generate(**many, generation_config=settings)[:, -1] for _ in range(times)]
    count = siblings * times
    shares = torch.bincount(torch.cat(drawn), minlength=len(wanted)) / count
    errors = (wanted * (1 - wanted) / count).sqrt()
    likely = wanted > 20 / count
    assert likely.sum() > 5
    assert ((shares - wanted).abs() < 5 * errors)[likely].all()


def test_the_policys_own_weights_stay_as_they_are(started: Started) -> None:
    before = {name: weight.clone() for name, weight in started.policy.state_dict().items()}
    started.policy.train()
    started.by_vllm(rows([(9, 2)]))
    assert started.policy.training and "generate" not in vars(causal_of(started.policy))
    assert all(torch.equal(weight, before[name]) for name, weight in started.policy.state_dict().items())


def test_adapters_that_did_not_arrive_end_the_stage(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows([(length, 2) for length in LENGTHS])
    started.by_vllm(batch)
    monkeypatch.setattr(started.engine, "_give", lambda _: None)
    started.train(seed=9)
    with pytest.raises(StageError, match=r"vLLM's log-probabilities are .* apart from the policy's"):
        started.by_vllm(batch)


def events_of(work: Path) -> str:
    path = work / "events.jsonl"
    return path.read_text() if path.exists() else ""


def vllm_processes() -> set[int]:
    """Of whoever."""
    return {process.pid for process in psutil.process_iter(["cmdline"]) if "VLLM" in str(process.info["cmdline"])}


def policy_spec(folder: Path, *, ranks: int = 1, **changes: Any) -> StageSpec:
    inputs = {
        "pairs": write_prompts(folder / "pairs", train=["Hi", "Which one?", "What is red?", "Name two of them", "No"]),
        "start_model": save_start_model(folder / "start"),
        "reward_model": folder / "reward_model",
    }
    merged = save_reward_model(folder / "reward_model" / "merged")
    inputs["certificate"] = write_certificate(folder / "certificate", score_head_sha256=score_head_sha256(merged))
    batch = BatchPlan(
        global_batch_size=8, per_device_batch_size=8 // ranks, num_processes=ranks, gradient_accumulation_steps=1
    )
    profile = CPU.model_copy(update={"num_processes": ranks})
    config = CONFIG.model_copy(update=changes)
    return make_spec(folder / "work", StageName.TRAIN_POLICY, config, inputs, batch=batch, profile=profile)


def test_ranks_are_trained_on_what_a_model_divided_over_two_writes(tmp_path: Path) -> None:
    spec = policy_spec(tmp_path, ranks=2, vllm_gpus=2)
    work = Path(spec.work_path)
    before = vllm_processes()
    run_stage(spec, tmp_path / "log.txt")
    assert "Completions are generated by vLLM" in (work / "events.jsonl").read_text()
    assert len(curve_of(work / "output", "reward")) == CONFIG.schedule.max_steps
    assert not (work / ADAPTERS_FOLDER).exists()
    assert vllm_processes() <= before
    assert (work / "output" / "model").is_dir()


def test_one_vllm_writes_for_all_ranks_what_one_beside_each_would(tmp_path: Path) -> None:
    curves, processes = [], []
    for alone in (0, 1):
        spec = policy_spec(tmp_path / str(alone), ranks=2, vllm_gpus=alone)
        stage = start_stage(spec, tmp_path / f"{alone}.txt")
        processes.append(most_engines(stage))
        assert stage.returncode == 0, (tmp_path / f"{alone}.txt").read_text()
        curves.append(curve_of(Path(spec.work_path) / "output", "reward", "loss"))
        events = events_of(Path(spec.work_path))
        assert ("on 1 GPU(s) of its own" in events) is bool(alone)
    assert processes == [2, 1]
    assert curves[0].keys() == curves[1].keys()
    assert largest_difference(*curves) < TOLERANCE


def most_engines(stage: subprocess.Popen[bytes]) -> int:
    """Of that stage, at the same time, until it ends."""
    most = 0
    while stage.poll() is None:
        engines = processes_of(stage, "EngineCore")
        ids = {engine.pid for engine in engines}
        # What an engine forks has its name until it executes something else.
        most = max(most, sum(parent_of(engine) not in ids for engine in engines))
        time.sleep(0.1)
    return most


def parent_of(process: psutil.Process) -> int | None:
    """None where it has ended."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


def processes_of(stage: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    """The stage's processes of that name: `EngineCore` is one for each vLLM."""
    try:
        children = psutil.Process(stage.pid).children(recursive=True)
        return [child for child in children if name in " ".join(child.cmdline())]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_all_ranks_end_with_the_reason_where_a_vllm_dies(tmp_path: Path) -> None:
    """While they wait for it: vLLM 0.29 tells the next call alone, and this one would wait for ever."""
    spec = policy_spec(tmp_path, ranks=2, vllm_gpus=1, schedule=LONGER)
    log = tmp_path / "log.txt"
    stage = start_stage(spec, log)
    wait_for_a_step(stage, spec)
    process = processes_of(stage, "EngineCore")[0]
    process.suspend()
    time.sleep(3)  # a step takes a tenth of it
    process.kill()
    outcome = ended(stage, spec, log)
    assert "vLLM wrote nothing" in outcome["message"] and "shared_prompts does without it" in outcome["message"]


def test_a_vllm_does_not_outlive_a_rank_that_was_killed(tmp_path: Path) -> None:
    """Nor does its guard; left alone, it would keep a GPU until somebody looks."""
    spec = policy_spec(tmp_path, schedule=LONGER)
    stage = start_stage(spec, tmp_path / "log.txt")
    wait_for_a_step(stage, spec)
    children = psutil.Process(stage.pid).children(recursive=True)
    assert processes_of(stage, "EngineCore")
    stage.kill()
    _, left = psutil.wait_procs(children, timeout=20)
    assert not left


def test_all_ranks_end_with_the_reason_where_vllm_does_not_start_for_them(tmp_path: Path) -> None:
    spec = policy_spec(tmp_path, ranks=2, vllm_gpus=1, lora=LoraSettings(r=600, alpha=600))
    stage = start_stage(spec, tmp_path / "log.txt")
    outcome = ended(stage, spec, tmp_path / "log.txt")
    assert outcome["kind"] == "bad_config"
    assert "vLLM takes adapters of rank 512 at most, not 600" in outcome["message"]


def wait_for_a_step(stage: subprocess.Popen[bytes], spec: StageSpec) -> None:
    """Until the policy has made one."""
    until = time.monotonic() + 200
    while '"reward"' not in events_of(Path(spec.work_path)) and stage.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


def ended(stage: subprocess.Popen[bytes], spec: StageSpec, log: Path) -> dict[str, Any]:
    """The outcome of a stage that has failed within a minute."""
    returned = stage.wait(60)
    outcome: dict[str, Any] = json.loads((Path(spec.work_path) / "outcome.json").read_text())
    assert (returned, outcome["outcome"]) == (1, "failure"), log.read_text()
    return outcome


def test_a_stop_that_all_processes_are_told_of_saves_and_the_next_attempt_ends_as_one_that_was_not_stopped(
    tmp_path: Path,
) -> None:
    whole, stopped = (policy_spec(tmp_path / name, schedule=LONGER, vllm_gpus=1) for name in ("whole", "stopped"))
    run_stage(whole, tmp_path / "whole.txt")
    work, log = Path(stopped.work_path), tmp_path / "stopped.txt"
    (tmp_path / "stopped.json").write_text(stopped.model_dump_json())
    command = [sys.executable, "-m", "containers.stages.entry", str(tmp_path / "stopped.json")]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    wait_for_a_step(process, stopped)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(100)
    assert json.loads((work / "outcome.json").read_text())["kind"] == "cancelled", log.read_text()
    run_stage(stopped, tmp_path / "again.txt")
    info = json.loads((work / "output" / "training_info.json").read_text())
    assert 0 < info["resumed_from_step"] < LONGER.max_steps
    curves = [curve_of(Path(spec.work_path) / "output", "reward", "loss") for spec in (whole, stopped)]
    assert curves[0].keys() == curves[1].keys()
    assert largest_difference(*curves) < TOLERANCE
