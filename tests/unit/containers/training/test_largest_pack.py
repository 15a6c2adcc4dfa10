"""The largest pack that a step can have is computed after the first one, and changes nothing of the training."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from containers.algorithms import reward_model
from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.scoring.scorer import score_head_sha256
from containers.stages import train_policy, train_reward_model, train_sft
from containers.training.largest import LargestPackCallback
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.reward_model_factory import reward_model_context
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

LORA = LoraSettings(r=4, alpha=8, dropout=0.2)
SCHEDULE = TrainingSchedule(max_steps=6, eval_steps=3)
PACK_TOKENS = 256


def _rows() -> list[dict[str, Any]]:
    """Short pairs, and a long one that a random order has late or never in six steps."""
    rows = colour_rows(96)
    rows[90]["chosen"][-1]["content"] = " ".join([rows[90]["chosen"][-1]["content"]] * 12)
    return rows


def _reward_model(folder: Path) -> StageContext:
    return reward_model_context(
        folder, rows=_rows(), max_length=2048, lora=LORA, schedule=SCHEDULE, pack_tokens=PACK_TOKENS
    )


def _sft(folder: Path) -> StageContext:
    inputs = {"pairs": write_pairs(folder / "pairs", _rows()), "start_model": save_causal_model(folder / "start")}
    config = TrainSftConfig(max_length=2048, lora=LORA, schedule=SCHEDULE, pack_tokens=PACK_TOKENS)
    return make_context(folder, StageName.TRAIN_SFT, config, inputs)


def _policy(folder: Path) -> StageContext:
    merged = save_reward_model(folder / "reward_model" / "merged")
    inputs = {
        "certificate": write_certificate(folder / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(folder / "prompts", train=["Hi", "Which one?", "What is red?", "No"]),
        "start_model": save_causal_model(folder / "start", seed=3),
        "reward_model": folder / "reward_model",
    }
    config = TrainPolicyConfig(
        max_prompt_length=64,
        max_completion_length=24,
        lora=LoraSettings(r=4, alpha=8),
        optimizer=OptimizerSettings(learning_rate=1e-3),
        schedule=TrainingSchedule(max_steps=3, save_steps=2),
    )
    return make_context(folder, StageName.TRAIN_POLICY, config, inputs)


def _weights(context: StageContext) -> list[bytes]:
    return [path.read_bytes() for path in sorted(context.output.rglob("*.safetensors"))]


def _notes(context: StageContext) -> list[str]:
    lines = map(json.loads, (context.work / "events.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if "largest possible pack" in line.get("text", "")]


@pytest.mark.parametrize(
    ("make", "run"),
    [(_reward_model, train_reward_model.run), (_sft, train_sft.run), (_policy, train_policy.run)],
    ids=["reward model", "sft", "policy"],
)
def test_a_training_is_the_same_byte_for_byte_as_without(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], StageContext],
    run: Callable[[StageContext], Any],
) -> None:
    tried, plain = make(tmp_path / "tried"), make(tmp_path / "plain")
    run(tried)
    with monkeypatch.context() as patch:
        patch.setattr(LargestPackCallback, "on_step_end", lambda *_, **__: None)
        run(plain)
    assert _weights(tried) == _weights(plain) != []
    (note,) = _notes(tried)
    assert "computed after the first step" in note
    if make is _policy:
        # Two prompts of at most 12 letters in the template of this model, and their eight completions of 24 tokens.
        (tokens,) = map(int, re.findall(r"pack, (\d+) tokens", note))
        assert 8 * 23 < tokens - 2 * 24 < 8 * 24 + 2 * 64
    assert not _notes(plain)


def test_a_pack_that_does_not_fit_ends_the_training_after_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _reward_model(tmp_path)
    packs: list[int] = []
    scores_of = reward_model.packed_scores

    def small_card(model: Any, pack: Any, classifier: Any) -> Any:
        if model.training and pack.input_ids.numel() > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        packs.append(pack.input_ids.numel())
        return scores_of(model, pack, classifier)

    limit = PACK_TOKENS  # what the long pair takes is more
    monkeypatch.setattr(reward_model, "packed_scores", small_card)
    with pytest.raises(torch.OutOfMemoryError):
        train_reward_model.run(context)
    assert not [*context.checkpoints.glob("checkpoint-*")]
    assert len(packs) < 12
