"""A policy's prompts go through two templates, its own and the reward model's, and either may refuse or lose some."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from containers.contracts.configs.parts.training import LoraSettings, TrainingSchedule
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.names import TRAINING_INFO_FILE, StageName
from containers.contracts.records import TrainingInfo
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.scoring.scorer import score_head_sha256
from containers.stages import train_policy
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.report.certificate_factory import write_certificate
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import CHATML, save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

# As Gemma refuses a system prompt, and as templates do that ask for the day.
REFUSING = "{% if 'dragons' in messages[0]['content'] %}{{ raise_exception('No dragons') }}{% endif %}" + CHATML
DATED = "{{ strftime_now('%d %b %Y') }}" + CHATML
# As Mistral leaves a system prompt out of what ends with an answer.
LOSING = (
    "{% for m in messages if messages[-1]['role'] == 'user' or 'dragons' not in m['content'] %}<|im_start|>"
    "{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _context(
    tmp_path: Path,
    *,
    of_policy: str = CHATML,
    of_reward_model: str = CHATML,
    prompts: Sequence[str] = ("Hi", "Which one?", "Where are dragons?", "No"),
) -> StageContext:
    merged = save_reward_model(tmp_path / "reward_model" / "merged")
    inputs = {
        "certificate": write_certificate(tmp_path / "certificate", score_head_sha256=score_head_sha256(merged)),
        "prompts": write_prompts(tmp_path / "pairs", train=prompts),
        "start_model": save_causal_model(tmp_path / "start", seed=3),
        "reward_model": tmp_path / "reward_model",
    }
    for folder, template in ((tmp_path / "start", of_policy), (merged, of_reward_model)):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
    config = TrainPolicyConfig(
        num_generations=4,
        max_prompt_length=64,
        max_completion_length=8,
        lora=LoraSettings(r=4, alpha=8),
        gradient_checkpointing=False,
        schedule=TrainingSchedule(max_steps=1),
    )
    shutil.rmtree(tmp_path / "work", ignore_errors=True)
    return make_context(tmp_path, StageName.TRAIN_POLICY, config, inputs)


def _notes(context: StageContext) -> str:
    events = [json.loads(line) for line in (context.work / "events.jsonl").read_text().splitlines()]
    return "\n".join(event["text"] for event in events if event["type"] == "note")


@pytest.mark.parametrize("whose", ["of_policy", "of_reward_model"])
def test_a_prompt_that_either_template_refuses_stops_the_stage_before_a_rollout(tmp_path: Path, whose: str) -> None:
    context = _context(tmp_path, **{whose: REFUSING})
    with pytest.raises(BadConfigError, match=r"refuses 1 of 4 conversations, so they have no tokens: `No dragons`"):
        train_policy.run(context)
    events = context.work / "events.jsonl"
    assert not events.exists() or '"metrics"' not in events.read_text()


def test_prompts_that_the_reward_model_has_no_row_for_are_left_out_and_counted(tmp_path: Path) -> None:
    context = _context(tmp_path, prompts=["See <image>", *("Which one?" for _ in range(10))])
    folder = context.input_path("reward_model") / "merged"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    train_policy.run(context)
    info = TrainingInfo.model_validate_json((context.output / TRAINING_INFO_FILE).read_text())
    assert (info.num_examples, info.examples_left_out, info.examples_without_row) == (10, 0, 1)
    assert "1 of 11 prompts are left out: they spell a token without a row in the reward model's" in _notes(context)


def test_a_lost_turn_and_the_date_are_told(tmp_path: Path) -> None:
    context = _context(tmp_path, of_policy=DATED, of_reward_model=LOSING)
    train_policy.run(context)
    notes = _notes(context)
    assert "the date is fixed to 26 July 2024" in notes
    assert "Prompts, as the reward model sees them: Warning: The chat template leaves out" in notes
    assert "Prompts, as the start model sees them" not in notes
