"""Attempts at trainings up to the examples that they would train on, for the tests of kept tokens."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.stages import StageConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.stages import train_reward_model, train_sft
from containers.training import program
from containers.training.examples import TrainingExamples
from containers.training.token_cache import KEPT_TOKENS_FILE
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.reward_model_factory import reward_model_config
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import CHATML, save_causal_model, tiny_tokenizer

USED = "The tokens are those that an earlier attempt made."
MADE_AGAIN = "Tokens are made again; those of an earlier attempt are not used: "
SHORT = TrainingSchedule(max_steps=1)
# As Mistral's: no conversation has its system prompt.
NO_SYSTEM = CHATML.replace("in messages %}", "in messages if message['role'] != 'system' %}")
SFT = (train_sft, TrainSftConfig(max_length=120, schedule=SHORT, completions="both"))
REWARD = (train_reward_model, reward_model_config(max_length=120, schedule=SHORT))
Stage = tuple[ModuleType, StageConfig]


class _Enough(BaseException):
    """The examples were read; what comes next is another matter."""


def rows(count: int = 40) -> list[dict[str, Any]]:
    """Some too long, some with a system prompt, some of several turns, and letters of other scripts."""
    found = colour_rows(count)
    found[3]["prompt"] = [{"role": "user", "content": "Why? " * 60}]
    found[4]["chosen"] = [{"role": "assistant", "content": "Because. " * 20}]
    found[5]["prompt"] = [{"role": "system", "content": "Be brief."}, *found[5]["prompt"]]
    found[6]["prompt"] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "日本"},
        *found[6]["prompt"],
    ]
    return found


def written(folder: Path, *, template: str = NO_SYSTEM) -> Path:
    """Pairs, prompts of the policy, and a start model."""
    write_prompts(write_pairs(folder / "pairs", rows()), train=["Why?"])
    save_causal_model(folder / "start", scale=0.02)
    give(folder, template=template)
    return folder


def give(folder: Path, *, template: str = NO_SYSTEM, token: str = "") -> None:
    """The start model's tokenizer anew, with that template and one more token."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_tokens([token] if token else [])
    tokenizer.save_pretrained(folder / "start")


def attempt(
    monkeypatch: pytest.MonkeyPatch, folder: Path, stage: Stage, **overrides: Any
) -> tuple[TrainingExamples, list[str]]:
    """The examples that an attempt of the stage would train on, and what it noted until then."""
    module, config = stage
    inputs = {"pairs": folder / "pairs", "start_model": folder / "start"}
    context = make_context(folder, StageName(config.stage), config, inputs, **overrides)
    (context.work / "events.jsonl").unlink(missing_ok=True)
    caught: list[TrainingExamples] = []

    def stop(context: StageContext, config: StageConfig, examples: TrainingExamples) -> None:
        caught.append(examples)
        raise _Enough

    with monkeypatch.context() as patch:
        patch.setattr(program, "resolve_training_schedule", stop)
        with pytest.raises(_Enough):
            module.run(context)
    return caught[0], notes(context.work)


def notes(work: Path) -> list[str]:
    """All that was noted in this work folder."""
    file = work / "events.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [event["text"] for event in events if event["type"] == "note"]


def file_of(folder: Path, stage: Stage) -> Path:
    """Where its tokens are kept."""
    return folder / "work" / stage[1].stage / "checkpoints" / KEPT_TOKENS_FILE
