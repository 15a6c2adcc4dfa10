"""A chat template comes with a model and is a program: one that never ends, or loses a turn, must stop the stage."""

import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.errors import BadConfigError, BadDataError
from containers.harness.recorder import Recorder
from containers.harness.stopping import StageCancelledError, StopSignal
from containers.models.chat_template import check_chat_template, peculiarities
from containers.models.loading import load_tokenizer
from containers.stages import train_reward_model, train_sft
from containers.stages.build_base_model import default_chat_template
from containers.stages.filter_dataset import run as run_filter_dataset
from tests.unit.factories.filter_factory import helpsteer3, write, write_hundred
from tests.unit.factories.reward_model_factory import reward_model_context
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import CHATML, save_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

# Jinja's sandbox allows ranges of at most 100,000, so the loops are nested.
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


# As their models bring them; TRL keeps copies.
REAL_TEMPLATES = Path(trl.__file__).parent / "chat_templates"
CONFIGS = Path(__file__).resolve().parents[4] / "configs" / "chat_templates"
SHIPPED = sorted(CONFIGS.glob("*.jinja"))


def _check(template: str, **arguments: Any) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = template
    check_chat_template(tokenizer, **{"folder": Path("model"), "time_limit_s": 0.3, **arguments})


@pytest.mark.parametrize(
    "name",
    ["cohere2_training", "deepseekv3", "gemma3", "glm4moe", "gptoss", "llama3", "llama3_2", "phi3", "qwen2_5", "qwen3"],
)
def test_templates_of_well_known_models_pass_in_silence(name: str) -> None:
    _check((REAL_TEMPLATES / f"{name}.jinja").read_text(), time_limit_s=5)


@pytest.mark.parametrize("name", ["idefics3", "smolvlm"])
def test_a_template_for_pictures_that_shows_no_plain_text_is_refused(name: str) -> None:
    """It looks for parts in each message, finds none in a string, and writes an empty conversation without a word."""
    with pytest.raises(BadConfigError, match="leaves out `first question`"):
        _check((REAL_TEMPLATES / f"{name}.jinja").read_text(), time_limit_s=5)


@pytest.mark.parametrize(
    "template", [ENDLESS + CHATML, CHATML + "{% if add_generation_prompt %}" + ENDLESS + "{% endif %}"]
)
def test_a_template_that_loops_is_stopped_and_named(template: str) -> None:
    started = time.monotonic()
    with pytest.raises(BadConfigError) as caught:
        _check(template, origin="org/name@abc")
    assert time.monotonic() - started < 5
    assert str(caught.value) == (
        "The chat template of org/name@abc (tokenizer_config.json) did not finish four short messages within 0.3 s: it "
        "loops forever, or for too long. Put a chat_template.jinja that works beside the tokenizer files, or start "
        "from another model."
    )


def test_a_range_beyond_what_the_sandbox_allows_does_not_render() -> None:
    with pytest.raises(BadConfigError, match="does not render two questions with their answers: Range too big"):
        _check("{% for i in range(10**9) %}{% endfor %}" + CHATML)


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        ("{{ messages[-1]['content'] }}", "first question"),
        ("{% for m in messages[-2:] %}{{ m['content'] }}{% endfor %}", "first question"),
        (
            "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}",
            "first answer",
        ),
        ("always the same", "first question"),
    ],
)
def test_a_template_that_leaves_out_a_turn_is_refused_with_the_turn(template: str, lost: str) -> None:
    with pytest.raises(BadConfigError, match=f"leaves out `{lost}`"):
        _check(template)


def test_a_tokenizer_that_reads_every_answer_as_the_same_tokens_is_refused() -> None:
    """Text outside its vocabulary becomes one unknown token; the rendered text alone would not show it."""
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    with pytest.raises(BadConfigError, match="gives the same tokens for `second answer` and `another answer`"):
        check_chat_template(tokenizer, folder=Path("model"))


def test_a_template_of_the_configuration_is_blamed_by_the_key_that_brought_it(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start")
    with pytest.raises(BadConfigError, match=r"of the configuration \(chat_template\), with the tokenizer of org"):
        load_tokenizer(start, origin="org/name", chat_template="{{ messages[-1]['content'] }}")


def _peculiarities(name: str) -> tuple[str, ...]:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = (REAL_TEMPLATES / f"{name}.jinja").read_text()
    return peculiarities(tokenizer, setting="train_reward_model.chat_template")


def test_a_system_prompt_that_a_template_makes_up_is_told_word_for_word() -> None:
    (told,) = _peculiarities("qwen2_5")
    assert "`You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>`" in told
    assert "train_reward_model.chat_template" in told


@pytest.mark.parametrize("name", ["gptoss", "llama3_2"])
def test_a_template_that_writes_the_date_is_told_of_beside_its_system_prompt(name: str) -> None:
    assert [text.partition("template ")[2][:5] for text in _peculiarities(name)] == ["puts ", "write"]


@pytest.mark.parametrize(
    "name", ["cohere", "deepseekv3", "gemma3", "glm4moe", "llama3", "phi3", "qwen3", "qwen3_instruct_2507"]
)
def test_a_template_that_adds_nothing_of_its_own_is_not_talked_about(name: str) -> None:
    assert _peculiarities(name) == ()


def test_reward_model_training_warns_of_a_made_up_system_prompt_unless_a_template_is_given(tmp_path: Path) -> None:
    save_causal_model(tmp_path / "start", scale=0.02)
    (tmp_path / "start" / "chat_template.jinja").write_text((REAL_TEMPLATES / "qwen2_5.jinja").read_text())
    warned = []
    for name, template in (("own", None), ("given", CHATML)):
        schedule = TrainingSchedule(max_steps=1)
        context = reward_model_context(tmp_path, chat_template=template, schedule=schedule, max_length=400)
        context = replace(context, recorder=Recorder(tmp_path / f"{name}.jsonl"))
        train_reward_model.run(context)
        warned.append("Warning: The start model's chat template puts" in (tmp_path / f"{name}.jsonl").read_text())
        shutil.rmtree(context.work)
    assert warned == [True, False]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_template_passes_ends_an_answer_and_makes_nothing_up(path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = path.read_text()
    check_chat_template(tokenizer, folder=path, is_own=False)
    assert peculiarities(tokenizer, setting="train_sft.chat_template") == ()
    question, answer = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
    system = {"role": "system", "content": "Be brief."}
    prompt = tokenizer.apply_chat_template([system, question], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([system, question, answer], tokenize=False)
    assert "Be brief." in prompt
    assert whole.startswith(prompt.rstrip(" "))
    assert "<|im_end|>" in whole.rpartition("So.")[2]


def test_the_shipped_chatml_writes_what_built_models_are_made_with() -> None:
    tokenizer, texts = tiny_tokenizer(), []
    conversation = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    for template in ((CONFIGS / "chatml.jinja").read_text(), default_chat_template()):
        tokenizer.chat_template = template
        texts.append(tokenizer.apply_chat_template(conversation, tokenize=False))
    assert texts[0] == texts[1]


def test_the_file_of_the_template_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("always the same")
    with pytest.raises(BadConfigError, match=r"\(chat_template\.jinja\) leaves out"):
        _check("always the same", folder=tmp_path)


def test_an_alarm_that_was_set_before_is_set_again() -> None:
    fallback: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda signum, frame: fallback.append(signum))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        _check(CHATML)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        deadline = time.monotonic() + 5
        while not fallback and time.monotonic() < deadline:
            time.sleep(0.02)
        assert fallback == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_outside_the_main_thread_a_template_is_tried_without_a_limit() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _check(CHATML)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


def test_a_stage_that_is_stopped_in_the_meantime_was_cancelled_and_blames_no_template() -> None:
    class Stopped:
        def apply_chat_template(self, *_: Any, **__: Any) -> str:
            signal.raise_signal(signal.SIGTERM)
            return ""

    handler = signal.getsignal(signal.SIGTERM)
    StopSignal().listen()
    try:
        with pytest.raises(StageCancelledError):
            check_chat_template(Stopped(), folder=Path("model"))
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_training_stage_tries_the_template_before_it_reads_the_data(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start")
    (start / "chat_template.jinja").write_text(ENDLESS + CHATML)
    pairs = write_pairs(tmp_path / "pairs", colour_rows(8))
    (pairs / "train.parquet").write_bytes(b"no parquet")
    context = make_context(tmp_path, StageName.TRAIN_SFT, TrainSftConfig(), {"pairs": pairs, "start_model": start})
    with pytest.raises(BadConfigError, match=r"of test/start_model \(chat_template\.jinja\) did not finish"):
        train_sft.run(context)


def test_counting_tokens_in_filter_dataset_tries_the_template_too(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    inputs = {"train_data": write_hundred(tmp_path), "tokenizer": tmp_path / "tokenizer"}
    context = make_context(tmp_path, StageName.FILTER_DATASET, FilterDatasetConfig(max_tokens=100), inputs)
    with pytest.raises(BadConfigError, match=r"of test/tokenizer .* leaves out `first question`"):
        run_filter_dataset(context)


def test_counting_tokens_in_filter_dataset_says_of_how_many_rows_the_template_makes_none(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    refusing = "{% if 'Why' in messages[0]['content'] %}{{ raise_exception('No reasons') }}{% endif %}"
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text(refusing + CHATML)
    rows = [helpsteer3(n) for n in range(98)]
    rows += [helpsteer3(n, context=[{"role": "user", "content": f"Why {n}?"}]) for n in (98, 99)]
    inputs = {"train_data": write(tmp_path / "train.jsonl", rows), "tokenizer": tmp_path / "tokenizer"}
    context = make_context(tmp_path, StageName.FILTER_DATASET, FilterDatasetConfig(max_tokens=1000), inputs)
    with pytest.raises(BadDataError) as caught:
        run_filter_dataset(context)
    assert str(caught.value).startswith(
        "filter_dataset.max_tokens counts with the chat template of the base model. The chat template refuses 4 of 200 "
        "conversations, so they have no tokens: `No reasons` (4; the first has the turns user, assistant). "
    )
