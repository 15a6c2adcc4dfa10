"""A template that writes the date of the day would make a score, and so a certificate, hold until midnight."""

from datetime import datetime, tzinfo
from pathlib import Path
from typing import Self

import pytest
import trl
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils
from trl.data_utils import apply_chat_template

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.models.chat_template import check_chat_template
from containers.models.loading import load_tokenizer
from containers.models.token_batches import prompt_token_ids, tokens_of_all
from containers.stages import train_sft
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import CHATML, save_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

# As Llama 3.2, gpt-oss and Mistral Small ask for the day: guarded, inside a macro, and into a variable.
LLAMA = (Path(trl.__file__).parent / "chat_templates" / "llama3_2.jinja").read_text()
IN_A_MACRO = "{% macro day() %}{{ 'Current date: ' + strftime_now('%Y-%m-%d') }}{% endmacro %}{{ day() }}\n" + CHATML
IN_A_VARIABLE = "{%- set today = strftime_now('%A, %B %-d, %Y at %H:%M') %}\n{{- today }}" + CHATML
PROMPT = [{"role": "user", "content": "Which day is it?"}]
CONVERSATION = [*PROMPT, {"role": "assistant", "content": "Friday."}]


def _tokenizer_folder(folder: Path, template: str) -> Path:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def _it_is(monkeypatch: pytest.MonkeyPatch, day: datetime) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(day.timestamp(), tz)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)


@pytest.mark.parametrize("template", [LLAMA, IN_A_MACRO, IN_A_VARIABLE], ids=["llama3_2", "macro", "variable"])
def test_every_path_to_tokens_gives_the_same_ones_tomorrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    folder, days = _tokenizer_folder(tmp_path / "start", template), []
    for day in (datetime(2026, 5, 1, 9, 30), datetime(2026, 11, 22, 17, 5)):
        _it_is(monkeypatch, day)
        tokenizer = load_tokenizer(folder)
        tokenizer.save_pretrained(tmp_path / "saved")
        days.append(
            [
                tokens_of_all(tokenizer, [CONVERSATION]),
                prompt_token_ids(tokenizer, [PROMPT]),
                apply_chat_template({"messages": CONVERSATION}, tokenizer)["text"],
                # Whoever loads the saved model knows nothing of this project.
                AutoTokenizer.from_pretrained(tmp_path / "saved").apply_chat_template(CONVERSATION, tokenize=False),
            ]
        )
    assert days[0] == days[1]
    assert "2024" in days[0][2]


def test_llamas_template_writes_what_it_writes_without_a_clock(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_tokenizer_folder(tmp_path, LLAMA))
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    plain = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        CONVERSATION, tokenize=False, date_string="26 Jul 2024"
    )
    assert "Today Date: 26 Jul 2024\n" in text
    assert text == plain


def test_a_date_in_words_is_the_fixed_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_tokenizer_folder(tmp_path, IN_A_VARIABLE))
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    assert text.startswith("Friday, July 26, 2024 at 00:00<|im_start|>user")


@pytest.mark.parametrize("beginning", ["", "\n", "  {% if true %}{% endif %}", "\n\n  "])
def test_nothing_but_the_date_changes_not_even_white_space_at_the_start(beginning: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = beginning + CHATML + "{# strftime_now #}"
    before = tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    check_chat_template(tokenizer, folder=Path("model"))
    assert tokenizer.apply_chat_template(CONVERSATION, tokenize=False) == before


def test_a_model_that_is_loaded_and_saved_again_keeps_its_template(tmp_path: Path) -> None:
    once = load_tokenizer(_tokenizer_folder(tmp_path / "start", LLAMA))
    once.save_pretrained(tmp_path / "once")
    assert load_tokenizer(tmp_path / "once").chat_template == once.chat_template
    tokenizer = tiny_tokenizer()
    check_chat_template(tokenizer, folder=Path("model"))
    assert tokenizer.chat_template == CHATML


def test_fine_tuning_says_which_date_it_writes(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start", scale=0.02)
    (start / "chat_template.jinja").write_text(IN_A_MACRO)
    pairs = write_pairs(tmp_path / "pairs", colour_rows(16))
    config = TrainSftConfig(max_length=400, schedule=TrainingSchedule(max_steps=1))
    context = make_context(tmp_path, StageName.TRAIN_SFT, config, {"pairs": pairs, "start_model": start})
    train_sft.run(context)
    events = (context.work / "events.jsonl").read_text()
    assert "Warning: The start model's chat template writes the date of the day." in events
    assert "the date is fixed to 26 July 2024" in events
    assert "set train_sft.chat_template" in events
