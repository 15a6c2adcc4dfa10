"""Fine-tuning teaches what the policy must write after the prompt that it is shown, and nothing else."""

from pathlib import Path

import pytest
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.errors import BadConfigError
from containers.models.token_batches import prompt_token_ids
from containers.stages import train_sft
from containers.training.completion_tokens import tokenised_completions, tokenised_conversations
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import CHATML, tiny_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
# What makes Mistral 7B Instruct v0.3 special: the system prompt stands before the last question, and only if that is
# the last turn.
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] + eos_token }}
    {%- endif %}
{%- endfor %}"""
QUESTION = [{"role": "user", "content": "Name a colour."}]
SYSTEM = [{"role": "system", "content": "Be brief."}]


def _answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def _merging_tokenizer() -> PreTrainedTokenizerFast:
    """As tiny_tokenizer, but two line breaks are one token wherever they stand, as with Qwen and Llama."""
    line_break, two = "Ċ", "ĊĊ"
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), two]
    backend = Tokenizer(
        models.BPE(
            vocab={character: index for index, character in enumerate(alphabet)}, merges=[(line_break, line_break)]
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def _split(tokenizer: PreTrainedTokenizerFast, prompt: list[dict[str, str]], answer: str) -> tuple[list[int], str]:
    """The tokens that are given, and the text that is to be written."""
    example = tokenised_completions(tokenizer, [(prompt, _answer(answer))])[0]
    tokens = list(zip(example["input_ids"], example["completion_mask"], strict=True))
    given = [token for token, mask in tokens if not mask]
    assert example["completion_mask"] == [0] * len(given) + [1] * (len(tokens) - len(given))
    return given, tokenizer.decode([token for token, mask in tokens if mask])


@pytest.mark.parametrize("answer", ["\nYes.", "\n\nYes.", "\n", "\n\n- one\n\n- two", "Yes."])
def test_an_answer_that_begins_with_line_breaks_is_learnt_whole_after_the_prompt_of_rollouts(answer: str) -> None:
    tokenizer = _merging_tokenizer()
    given, written = _split(tokenizer, QUESTION, answer)
    assert given == prompt_token_ids(tokenizer, [QUESTION])[0]
    asked = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    assert given == tokenizer(asked, add_special_tokens=False)["input_ids"]  # what transformers itself gives
    assert written == f"{answer}<|im_end|>\n"


@pytest.mark.parametrize("prompt", [QUESTION, [*SYSTEM, *QUESTION], [*QUESTION, *_answer("Red."), *QUESTION]])
def test_qwen3_learns_the_answer_alone_after_the_empty_thought_of_rollouts(prompt: list[dict[str, str]]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (TEMPLATES / "qwen3.jinja").read_text()
    given, written = _split(tokenizer, prompt, "Blue.")
    assert given == prompt_token_ids(tokenizer, [prompt])[0]
    assert tokenizer.decode(given).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert written == "Blue.<|im_end|>\n"


@pytest.mark.parametrize("name", ["llama3", "llama3_2", "gemma", "gemma3", "qwen2_5", "qwen3_instruct_2507", "phi3"])
def test_with_other_models_too_the_prompt_is_that_of_rollouts(name: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    given, written = _split(tokenizer, QUESTION, "Blue.")
    assert given == prompt_token_ids(tokenizer, [QUESTION])[0]
    assert written.startswith("Blue.<")
    assert "think" not in written


def test_rows_whose_prompt_changes_before_an_answer_are_counted_and_told_with_the_way_out() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = MISTRAL
    good, bad = (QUESTION, _answer("Blue.")), ([*SYSTEM, *QUESTION], _answer("Red."))
    with pytest.raises(BadConfigError) as caught:
        tokenised_completions(tokenizer, [good, bad, good, bad])
    assert "the prompt of 2 of 4 completions differently" in str(caught.value)
    assert "The first has the turns system, user, assistant and answers `Red.`" in str(caught.value)
    assert "Set train_sft.chat_template to another one, by name (chatml, say)" in str(caught.value)


def test_fine_tuning_runs_on_answers_that_begin_with_a_line_break(tmp_path: Path) -> None:
    start, tokenizer = tmp_path / "start", _merging_tokenizer()
    tiny_causal_model(tokenizer, scale=0.02).save_pretrained(start)
    tokenizer.save_pretrained(start)
    rows = colour_rows(16)
    for row in rows:
        row["chosen"] = _answer("\n" + row["chosen"][0]["content"])
    inputs = {"pairs": write_pairs(tmp_path / "pairs", rows), "start_model": start}
    config = TrainSftConfig(max_length=400, schedule=TrainingSchedule(max_steps=1))
    values = {
        metric.name: metric.value
        for metric in train_sft.run(make_context(tmp_path, StageName.TRAIN_SFT, config, inputs))
    }
    assert values["num_steps"] == 1
    assert values["train_completions_left_out"] == 0


TALK = [*SYSTEM, *QUESTION, *_answer("Red."), {"role": "user", "content": "One more."}, *_answer("A deep blue.")]


def _learnt(tokenizer: PreTrainedTokenizerFast, example: dict[str, list[int]]) -> list[str]:
    """The texts that an example's mask marks, one for each run of tokens."""
    runs: list[list[int]] = [[]]
    for token, mask in zip(example["input_ids"], example["completion_mask"], strict=True):
        if mask:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run) for run in runs if run]


def test_one_example_has_every_answer_of_a_conversation_and_no_other_turn() -> None:
    tokenizer = tiny_tokenizer()
    ((whole,), (single,)) = tokenised_conversations(tokenizer, [TALK, TALK[:3]], max_length=512)
    assert _learnt(tokenizer, whole) == ["Red.<|im_end|>\n", "A deep blue.<|im_end|>\n"]
    assert tokenizer.decode(whole["input_ids"]) == tokenizer.apply_chat_template(TALK, tokenize=False)
    assert single == tokenised_completions(tokenizer, [(TALK[:2], TALK[2:3])])[0]


def test_a_template_that_writes_earlier_answers_differently_gives_an_example_for_each() -> None:
    """Qwen3 writes an empty thought before the answer that it generates, and none before earlier answers."""
    tokenizer = tiny_tokenizer(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"))
    tokenizer.chat_template = (TEMPLATES / "qwen3.jinja").read_text()
    (found,) = tokenised_conversations(tokenizer, [TALK], max_length=512)
    assert [_learnt(tokenizer, example) for example in found] == [["Red.<|im_end|>\n"], ["A deep blue.<|im_end|>\n"]]
    for example, turns in zip(found, (TALK[:2], TALK[:4]), strict=True):
        (asked,) = prompt_token_ids(tokenizer, [turns])
        assert example["input_ids"][: len(asked)] == asked


def test_an_answer_beyond_the_limit_does_not_take_those_before_it_away() -> None:
    tokenizer = tiny_tokenizer()
    ((whole,),) = tokenised_conversations(tokenizer, [TALK], max_length=512)
    (found,) = tokenised_conversations(tokenizer, [TALK], max_length=len(whole["input_ids"]) - 1)
    assert [_learnt(tokenizer, example) for example in found] == [["Red.<|im_end|>\n"], ["A deep blue.<|im_end|>\n"]]
    assert len(found[0]["input_ids"]) < len(found[1]["input_ids"]) == len(whole["input_ids"])
