"""A template that refuses or loses turns is told of with numbers before hours of training, not amid them."""

import json
from pathlib import Path
from typing import Any

import pytest
import trl

from containers.contracts.certificate import Certificate
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.hardware import BatchPlan
from containers.contracts.names import StageName
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.models.template_losses import TemplateLosses
from containers.models.token_batches import tokens_of_all
from containers.stages import evaluate_reward_model, train_reward_model, train_sft
from tests.unit.containers.stages.test_completion_tokens import MISTRAL
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.reward_model_factory import reward_model_context
from tests.unit.factories.spec_factory import colour_rows, make_context, run_stage, start_stage, write_pairs
from tests.unit.factories.tiny_policy import CHATML, save_causal_model, save_reward_model, tiny_tokenizer

pytestmark = pytest.mark.stages

GEMMA = (Path(trl.__file__).parent / "chat_templates" / "gemma.jinja").read_text()
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Name a colour."}
ANSWER = {"role": "assistant", "content": "Blue."}
SHORT = TrainingSchedule(max_steps=1)
WAY_OUT = (
    "Set train_sft.chat_template (it stays with the model), or train_reward_model.chat_template if there is no "
    "train_sft"
)


def _rows(*, num_with_system: int = 0, num_with_two_questions: int = 0) -> list[dict[str, Any]]:
    """24 pairs, of which the first have a system prompt, and the last two questions in a row."""
    rows = colour_rows(24)
    for row in rows[:num_with_system]:
        row["prompt"] = [SYSTEM, *row["prompt"]]
    for row in rows[len(rows) - num_with_two_questions :]:
        row["prompt"] = [QUESTION, *row["prompt"]]
    return rows


def _start(folder: Path, template: str) -> Path:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = template
    tokenizer.save_pretrained(save_causal_model(folder, scale=0.02))
    return folder


def _sft(tmp_path: Path, rows: list[dict[str, Any]], template: str, **changes: Any) -> StageContext:
    inputs = {"pairs": write_pairs(tmp_path / "pairs", rows), "start_model": _start(tmp_path / "start", template)}
    config = TrainSftConfig(max_length=400, schedule=SHORT, **changes)
    return make_context(tmp_path, StageName.TRAIN_SFT, config, inputs)


def _reward_model(tmp_path: Path, rows: list[dict[str, Any]], template: str, **changes: Any) -> StageContext:
    _start(tmp_path / "start", template)
    return reward_model_context(tmp_path, rows=rows, max_length=400, schedule=SHORT, **changes)


def _notes(context: StageContext) -> str:
    events = [json.loads(line) for line in (context.work / "events.jsonl").read_text().splitlines()]
    return "\n".join(event["text"] for event in events if event["type"] == "note")


def test_fine_tuning_with_gemma_says_how_many_rows_it_refuses_and_why() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = GEMMA
    good, with_system, twice = [QUESTION, ANSWER], [SYSTEM, QUESTION, ANSWER], [QUESTION, QUESTION, ANSWER]
    with pytest.raises(BadConfigError) as caught:
        tokens_of_all(tokenizer, [good] * 600 + [with_system, twice, with_system])
    assert str(caught.value) == (
        "The chat template refuses 3 of 603 conversations, so they have no tokens: `System role not supported` (2; the "
        "first has the turns system, user, assistant); `Conversation roles must alternate "
        "user/assistant/user/assistant/...` (1; the first has the turns user, user, assistant). "
        f"{WAY_OUT}, to a template that writes every turn, by name (chatml, say) or as a .jinja file; a policy "
        "without train_sft keeps its model's own template. Or leave such rows out of the data."
    )


@pytest.mark.parametrize("rows", [{"num_with_system": 3}, {"num_with_two_questions": 3}])
def test_both_trainings_stop_before_they_begin_where_gemma_refuses_rows(tmp_path: Path, rows: dict[str, int]) -> None:
    with pytest.raises(BadConfigError, match=r"refuses 3 of 24 conversations, so they have no tokens: `(System|Conv)"):
        train_sft.run(_sft(tmp_path / "sft", _rows(**rows), GEMMA))
    with pytest.raises(BadConfigError, match=r"refuses 6 of 48 conversations, so they have no tokens: `(System|Conv)"):
        train_reward_model.run(_reward_model(tmp_path / "rm", _rows(**rows), GEMMA))


def test_with_a_template_of_the_configuration_they_train(tmp_path: Path) -> None:
    context = _sft(tmp_path, _rows(num_with_system=3, num_with_two_questions=3), GEMMA, chat_template=CHATML)
    train_sft.run(context)
    assert "Warning" not in _notes(context)


def test_a_prompt_of_the_policy_that_would_be_refused_hours_later_is_told_at_once(tmp_path: Path) -> None:
    context = _reward_model(tmp_path, _rows(), GEMMA.replace("System role not supported", "Not supported"))
    write_prompts(tmp_path / "pairs", train=["Why?"])
    train_reward_model.run(context)
    refusing = "{% if 'dragons' in messages[0]['content'] %}{{ raise_exception('No dragons') }}{% endif %}"
    context = _reward_model(tmp_path / "refusing", _rows(), refusing + CHATML)
    write_prompts(tmp_path / "refusing" / "pairs", train=["Why?", "Where are dragons?"])
    with pytest.raises(BadConfigError, match=r"refuses 1 of 4 conversations.*No dragons"):
        train_reward_model.run(context)


def test_a_reward_model_that_never_sees_system_prompts_is_warned_of_with_their_number(tmp_path: Path) -> None:
    context = _reward_model(tmp_path, _rows(num_with_system=5), MISTRAL)
    train_reward_model.run(context)
    notes = _notes(context)
    # Both sides of 5 of 24 pairs, and both sides of 24 validation pairs.
    assert (
        "Warning: The chat template leaves out the turn of the role system in 10 of 96 conversations (the first: "
        f"`Be brief.`). The model never sees them as they are. {WAY_OUT}" in notes
    )


def test_a_template_of_the_reward_model_does_not_hide_what_its_policy_will_meet(tmp_path: Path) -> None:
    refusing = "{% if 'dragons' in messages[0]['content'] %}{{ raise_exception('No dragons') }}{% endif %}"
    context = _reward_model(tmp_path, _rows(), refusing + CHATML, chat_template=CHATML)
    write_prompts(tmp_path / "pairs", train=["Why?", "Where are dragons?"])
    train_reward_model.run(context)
    wanted = "A policy that starts from this model without train_sft would fail: The chat template refuses 1 of 4"
    assert wanted in _notes(context)


@pytest.mark.slow
def test_two_ranks_that_share_the_pairs_count_all_of_them(tmp_path: Path) -> None:
    two = BatchPlan(global_batch_size=8, per_device_batch_size=4, num_processes=2, gradient_accumulation_steps=1)
    losing = _reward_model(tmp_path / "losing", _rows(num_with_system=5), MISTRAL)
    run_stage(losing.spec.model_copy(update={"batch": two}), tmp_path / "losing.log")
    assert "leaves out the turn of the role system in 10 of 96 conversations" in _notes(losing)
    refusing = _reward_model(tmp_path / "refusing", _rows(num_with_system=3), GEMMA)
    assert start_stage(refusing.spec.model_copy(update={"batch": two}), tmp_path / "refusing.log").wait(400) == 1
    outcome = json.loads((refusing.work / "outcome.json").read_text())
    assert "refuses 6 of 48 conversations" in outcome["message"]


def test_a_template_that_writes_every_turn_is_not_talked_about(tmp_path: Path) -> None:
    context = _reward_model(tmp_path, _rows(num_with_system=5, num_with_two_questions=5), CHATML)
    train_reward_model.run(context)
    assert "chat template" not in _notes(context)


def test_a_system_prompt_in_the_midst_of_the_turns_is_another_order() -> None:
    """As Mistral has it in a prompt with several turns, for a policy to go on from."""
    tokenizer, losses = tiny_tokenizer(), TemplateLosses()
    tokenizer.chat_template = MISTRAL
    prompts = [[SYSTEM, QUESTION], [SYSTEM, QUESTION, ANSWER, {"role": "user", "content": "Another?"}], [QUESTION]]
    tokens_of_all(tokenizer, prompts, add_generation_prompt=True, losses=losses)
    assert losses.text().startswith(
        "Warning: The chat template writes the turns of 1 of 3 conversations in another order. The model never"
    )


@pytest.mark.parametrize("name", ["gemma", "gemma3", "llama3", "llama3_2", "phi3", "qwen2_5", "qwen3"])
def test_templates_that_trim_and_wrap_turns_lose_nothing(name: str) -> None:
    tokenizer, losses = tiny_tokenizer(), TemplateLosses()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    turns = [{"role": "user", "content": " a \n"}, {"role": "assistant", "content": "\n\na"}] * 2
    tokens_of_all(tokenizer, [turns, [QUESTION, ANSWER], [QUESTION, ANSWER, QUESTION, ANSWER]], losses=losses)
    if name not in ("gemma", "phi3"):
        tokens_of_all(tokenizer, [[SYSTEM, QUESTION, ANSWER]], losses=losses)
    assert losses.text() == ""


def _certify(tmp_path: Path, template: str, prompts: list[list[dict[str, str]]]) -> tuple[StageContext, Certificate]:
    model = save_reward_model(tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = template
    tokenizer.save_pretrained(model)
    rows = [
        {"prompt": prompt, "chosen": [ANSWER], "rejected": [{"role": "assistant", "content": f"Red {number}."}]}
        for number, prompt in enumerate(prompts)
    ]
    suite = tmp_path / "own.jsonl"
    suite.write_text("".join(json.dumps(row) + "\n" for row in rows))
    validation = [{**row, "prompt": [SYSTEM, *row["prompt"]]} for row in colour_rows(2)] + colour_rows(10)
    inputs = {
        "pairs": write_pairs(tmp_path / "pairs", colour_rows(1), validation),
        "reward_model": model,
        "suite_own": suite,
    }
    config = EvaluateRewardModelConfig(max_length=400, num_bootstrap=200, suites=(SuiteFile(name="own", path="own"),))
    context = make_context(tmp_path, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    return context, Certificate.model_validate_json((context.output / "certificate.json").read_bytes())


def test_items_that_gemmas_template_refuses_are_left_out_of_the_certificate_and_counted(tmp_path: Path) -> None:
    context, certificate = _certify(tmp_path, GEMMA, [[QUESTION], [SYSTEM, QUESTION], [QUESTION]])
    of_suite = {suite.name: suite for suite in certificate.suites}
    assert of_suite["own"].left_out_because == (("template_refuses", 1),)
    assert (of_suite["own"].num_pairs, of_suite["own"].num_left_out) == (2, 1)
    assert of_suite["test"].left_out_because == (("template_refuses", 2),)
    assert (
        "Warning: own: 1 of 3 items are left out, because the reward model's chat template refuses them (`System "
        "role not supported` 1)." in _notes(context)
    )


def test_a_suite_whose_system_prompts_the_reward_model_never_sees_is_warned_of(tmp_path: Path) -> None:
    context, certificate = _certify(tmp_path, MISTRAL, [[QUESTION], [SYSTEM, QUESTION], [QUESTION]])
    assert all(suite.num_left_out == 0 for suite in certificate.suites)
    assert "own: Warning: The chat template leaves out the turn of the role system in 1 of 3" in _notes(context)
