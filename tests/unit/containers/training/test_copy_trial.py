"""A model whose saved copies are not the model is found before the first step, and the trial changes no training."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peft.tuners.lora import LoraModel

from containers.algorithms import policy_training
from containers.contracts.configs.parts.training import LoraSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.scoring import reload
from containers.stages import train_policy, train_reward_model, train_sft
from containers.training import causal_copies
from containers.training.copy_trial import TRIAL_FOLDER
from containers.training.program import Training
from tests.unit.containers.scoring.test_bfloat16_scores import BFLOAT16
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.reward_model_factory import reward_model_context
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

LORA = LoraSettings(r=4, alpha=8, dropout=0.2)
SCHEDULE = TrainingSchedule(max_steps=2, eval_steps=1)
SCHEDULE_OF_A_POLICY = TrainingSchedule(max_steps=2, save_steps=1)
Stage = tuple[StageContext, Callable[[StageContext], Any]]


def _reward_model(folder: Path, **changes: Any) -> Stage:
    changes = {"lora": LORA, "schedule": SCHEDULE, **changes}
    return reward_model_context(folder, rows=colour_rows(16), **changes), train_reward_model.run


def _sft(folder: Path, **changes: Any) -> Stage:
    start = folder / "start"
    if not start.exists():
        save_causal_model(start, scale=0.02)
    inputs = {"pairs": write_pairs(folder / "pairs", colour_rows(16)), "start_model": start}
    config = TrainSftConfig(max_length=256, schedule=SCHEDULE, **{"lora": LORA, **changes})
    return make_context(folder, StageName.TRAIN_SFT, config, inputs), train_sft.run


KINDS: dict[str, Callable[[Path], Stage]] = {
    "reward model, adapters": _reward_model,
    "reward model, a score token": lambda folder: _reward_model(folder, use_cls=True),
    "reward model, all weights": lambda folder: _reward_model(folder, trainable="full", lora=None),
    "reward model, the head alone": lambda folder: _reward_model(folder, trainable="head", lora=None),
    "reward model, nf4": lambda folder: _reward_model(folder, quantization="nf4"),
    "reward model, int8": lambda folder: _reward_model(folder, quantization="int8"),
    "sft, adapters": _sft,
    "sft, all weights": lambda folder: _sft(folder, lora=None),
    "sft, nf4": lambda folder: _sft(folder, quantization="nf4"),
    "sft, int8": lambda folder: _sft(folder, quantization="int8"),
}


def _notes(context: StageContext) -> list[str]:
    lines = map(json.loads, (context.work / "events.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line["type"] == "note" and "Before the first step" in line["text"]]


def _weights(context: StageContext) -> list[bytes]:
    return [path.read_bytes() for path in sorted(context.output.rglob("*.safetensors"))]


def _in_bfloat16(stage: Stage) -> StageContext:
    return replace(stage[0], spec=stage[0].spec.model_copy(update={"profile": BFLOAT16}))


@pytest.mark.parametrize("kind", KINDS)
def test_the_copies_are_tried_and_the_training_is_the_same_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tried, run), (plain, _) = KINDS[kind](tmp_path / "tried"), KINDS[kind](tmp_path / "plain")
    run(tried)
    monkeypatch.setattr(Training, "try_copies", lambda self: None)
    run(plain)
    (note,) = _notes(tried)
    assert "its copies differ from it" in note and "of disk, which are free again." in note
    assert not (tried.work / TRIAL_FOLDER).exists()
    assert _weights(tried) == _weights(plain) != []
    assert not _notes(plain)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "nf4" not in kind and "int8" not in kind])
def test_the_copies_hold_in_bfloat16(tmp_path: Path, kind: str) -> None:
    made = KINDS[kind](tmp_path)
    context = _in_bfloat16(made)
    made[1](context)
    assert len(_notes(context)) == 1


@pytest.mark.parametrize("is_bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["reward model, adapters", "sft, adapters"])
def test_adapters_that_are_lost_in_the_merge_end_the_stage_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_bfloat16: bool
) -> None:
    made = KINDS[kind](tmp_path)
    context = _in_bfloat16(made) if is_bfloat16 else made[0]
    monkeypatch.setattr(LoraModel, "merge_and_unload", lambda self: self.unload())
    with pytest.raises(BadConfigError) as raised:
        made[1](context)
    folder = "merged/" if "reward" in kind else "model/"
    assert f"{folder}, loaded from disk, is" in str(raised.value) and "allowed:" in str(raised.value)
    assert "adapter/, loaded" not in str(raised.value), "the adapter itself was right"
    assert not (context.work / TRIAL_FOLDER).exists()
    assert not list(context.checkpoints.glob("checkpoint-*"))
    assert not (context.work / "events.jsonl").exists(), "nothing was computed, so there is no curve"


@pytest.mark.parametrize("kind", ["reward model, all weights", "sft, all weights"])
def test_weights_of_the_start_model_in_place_of_the_trained_ones_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    context, run = KINDS[kind](tmp_path)
    module = reload if "reward" in kind else causal_copies
    save, start = module.save_merged, Path(context.input("start_model").path)

    def stale(model: Any, tokenizer: Any, folder: Path) -> Any:
        saved = save(model, tokenizer, folder)
        again = type(saved).from_pretrained(start, **({"num_labels": 1} if "reward" in kind else {}))
        again.config.pad_token_id = tokenizer.pad_token_id
        again.save_pretrained(folder)
        return saved

    monkeypatch.setattr(module, "save_merged", stale)
    with pytest.raises(BadConfigError, match="loaded from disk, is"):
        run(context)


def test_a_copy_that_cannot_be_loaded_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = _reward_model(tmp_path)
    save = reload.save_merged

    def without_weights(model: Any, tokenizer: Any, folder: Path) -> Any:
        saved = save(model, tokenizer, folder)
        (folder / "model.safetensors").unlink()
        return saved

    monkeypatch.setattr(reload, "save_merged", without_weights)
    with pytest.raises(BadConfigError, match="could not be loaded again"):
        run(context)
    assert not (context.work / TRIAL_FOLDER).exists()


def test_an_attempt_that_resumes_does_not_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, run = _reward_model(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(train_reward_model.RewardModelTraining, "save", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(context)
    run(context)
    assert len(_notes(context)) == 1


def test_leftovers_of_an_attempt_that_was_killed_are_removed(tmp_path: Path) -> None:
    context, run = _reward_model(tmp_path)
    (context.work / TRIAL_FOLDER / "output").mkdir(parents=True)
    (context.work / TRIAL_FOLDER / "output" / "half").write_bytes(b"x" * 4096)
    run(context)
    assert not (context.work / TRIAL_FOLDER).exists()


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapters", "all weights"])
def test_a_policy_tries_its_copies_before_its_rewards_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: LoraSettings | None
) -> None:
    """So the trial has the GPU for itself."""
    inputs = {
        "prompts": write_prompts(tmp_path / "pairs", train=["Hi", "Which one?", "What is red?", "No"]),
        "start_model": save_causal_model(tmp_path / "start", scale=0.02),
    }
    config = TrainPolicyConfig(
        num_generations=4, max_prompt_length=64, max_completion_length=8, lora=lora, schedule=SCHEDULE_OF_A_POLICY
    )
    context = make_context(tmp_path, StageName.TRAIN_POLICY, config, inputs)
    monkeypatch.setattr(policy_training, "start_rewards", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_policy.run(context)
    (note,) = _notes(context)
    assert "model/ by" in note and ("adapter/ by" in note) == (lora is not None)
