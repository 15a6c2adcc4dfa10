"""The policy learns to write completions, and only them: not prompts, not the side that people rejected."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from containers.contracts.configs.parts.training import LoraSettings, OptimizerSettings, TrainingSchedule
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import TrainingInfo
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, DivergedError
from containers.models.loading import load_tokenizer
from containers.stages import train_sft
from containers.training.completion_tokens import tokenised_completions
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import save_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages


def _context(tmp_path: Path, *, rows: list[dict[str, Any]] | None = None, **changes: Any) -> StageContext:
    fields: dict[str, Any] = {
        "max_length": 256,
        "optimizer": OptimizerSettings(learning_rate=3e-3),
        "schedule": TrainingSchedule(max_steps=20, eval_steps=10),
        **changes,
    }
    inputs = {
        "pairs": write_pairs(tmp_path / "pairs", colour_rows(64) if rows is None else rows),
        "start_model": save_causal_model(tmp_path / "start", scale=0.02),
    }
    return make_context(tmp_path, StageName.TRAIN_SFT, TrainSftConfig(**fields), inputs)


def _values(metrics: tuple[Metric, ...]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics}


def _completion_loss(folder: Path, side: str) -> float:
    """Mean loss over the completion tokens of fresh rows, by plain transformers."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    losses: list[float] = []
    for row in colour_rows(12, seed=3):
        example = tokenised_completions(tokenizer, [(row["prompt"], row[side])])[0]
        labels = [
            token if mask else -100
            for token, mask in zip(example["input_ids"], example["completion_mask"], strict=True)
        ]
        with torch.no_grad():
            output = model(input_ids=torch.tensor([example["input_ids"]]), labels=torch.tensor([labels]))
        losses.append(output.loss.item())
    return sum(losses) / len(losses)


def test_chosen_completions_become_likely_and_rejected_ones_do_not(tmp_path: Path) -> None:
    context = _context(tmp_path)
    values = _values(train_sft.run(context))
    model = context.output / "model"
    assert _completion_loss(model, "chosen") < _completion_loss(tmp_path / "start", "chosen") - 1.0
    assert _completion_loss(model, "chosen") < _completion_loss(model, "rejected") - 0.2
    assert values["validation_loss"] == pytest.approx(_completion_loss(model, "chosen"), rel=0.1)
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert (info.num_steps, info.num_examples, info.best_step) == (20, 64, 20)
    assert AutoTokenizer.from_pretrained(model).chat_template


def test_with_both_sides_every_pair_gives_two_completions(tmp_path: Path) -> None:
    context = _context(tmp_path, completions="both")
    train_sft.run(context)
    assert TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes()).num_examples == 128
    assert _completion_loss(context.output / "model", "rejected") < _completion_loss(tmp_path / "start", "rejected") - 1


@pytest.mark.parametrize("completions", ["chosen", "both"])
def test_packs_and_padded_rows_train_the_same_model(tmp_path: Path, completions: str) -> None:
    contexts = []
    for pack in (True, False):
        folder = tmp_path / str(pack)
        folder.mkdir()
        contexts.append(_context(folder, completions=completions, pack=pack))
        train_sft.run(contexts[-1])
    for name in ("loss", "eval_loss", "entropy", "eval_entropy", "num_tokens"):
        ours, theirs = (_curve(context, name) for context in contexts)
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert len(ours) == (2 if name.startswith("eval_") else 20)
    notes = [(context.work / "events.jsonl").read_text() for context in contexts]
    assert "Completions are packed, 2,048 tokens at a time" in notes[0]
    assert "Completions are packed" not in notes[1]


def _curve(context: StageContext, name: str) -> list[float]:
    points = [json.loads(line)["values"] for line in (context.output / "curves.jsonl").read_text().splitlines()]
    return [point[name] for point in points if name in point]


def test_lora_gives_an_adapter_and_a_merged_model(tmp_path: Path) -> None:
    context = _context(tmp_path, lora=LoraSettings(r=4, alpha=16), optimizer=OptimizerSettings(learning_rate=1e-2))
    values = _values(train_sft.run(context))
    assert values["trainable_parameters"] < values["total_parameters"]
    assert (context.output / "adapter" / "adapter_model.safetensors").is_file()
    assert _completion_loss(context.output / "model", "chosen") < _completion_loss(tmp_path / "start", "chosen")


def test_adapters_begin_with_the_numbers_of_the_runs_seed(tmp_path: Path) -> None:
    made = []
    for state in (1, 2):
        folder = tmp_path / str(state)
        folder.mkdir()
        context = _context(folder, lora=LoraSettings(r=4, alpha=16))
        torch.manual_seed(state)
        train_sft.run(context)
        made.append(load_file(context.output / "adapter" / "adapter_model.safetensors"))
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def test_the_mask_covers_what_generation_must_write_including_the_end_of_the_turn() -> None:
    tokenizer = tiny_tokenizer()
    row = colour_rows(1)[0]
    example = tokenised_completions(tokenizer, [(row["prompt"], row["chosen"])])[0]
    prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
    written = [t for t, mask in zip(example["input_ids"], example["completion_mask"], strict=True) if mask]
    assert example["input_ids"][: len(prompt)] == prompt
    assert tokenizer.decode(written) == row["chosen"][0]["content"] + "<|im_end|>\n"


def test_tokens_and_mask_are_those_of_trl_itself(tmp_path: Path) -> None:
    rows, folder = colour_rows(5), save_causal_model(tmp_path / "start")
    tokenizer = load_tokenizer(folder)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        args=SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_length=256),
        train_dataset=Dataset.from_list([{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows]),
        processing_class=tokenizer,
    )
    for row, theirs in zip(rows, trainer.train_dataset, strict=True):
        ours = tokenised_completions(tokenizer, [(row["prompt"], row["chosen"])])[0]
        assert ours["input_ids"] == theirs["input_ids"]
        assert [int(label != -100) for label in theirs["labels"]] == ours["completion_mask"]


def test_a_template_that_rewrites_the_prompt_before_a_completion_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages | length }}: {% for m in messages %}{{ m['content'] }} {% endfor %}"
    row = colour_rows(1)[0]
    with pytest.raises(BadConfigError, match="prompt of 1 of 1 completions differently"):
        tokenised_completions(tokenizer, [(row["prompt"], row["chosen"])])[0]


def test_completions_that_are_too_long_are_counted_out(tmp_path: Path) -> None:
    rows = colour_rows(64)
    for row in rows[:3]:
        row["chosen"] = [{"role": "assistant", "content": "yes " * 200}]
    context = _context(tmp_path, rows=rows)
    values = _values(train_sft.run(context))
    assert values["train_completions_left_out"] == 3
    assert "3 of 64 training completions are left out" in (context.work / "events.jsonl").read_text()


def test_a_length_that_nothing_fits_in_is_refused_with_the_one_that_keeps_most_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    context = _context(tmp_path, max_length=8)
    (tmp_path / "start" / "model.safetensors").unlink()
    with pytest.raises(BadDataError, match=r"Raise train_sft\.max_length to \d\d to keep most of them") as caught:
        train_sft.run(context)
    needed = int(str(caught.value).rpartition("max_length to ")[2].split()[0])
    tokenizer = tiny_tokenizer()
    examples = tokenised_completions(tokenizer, [(row["prompt"], row["chosen"]) for row in colour_rows(64)])
    lengths = [len(example["input_ids"]) for example in examples]
    assert sum(length <= needed for length in lengths) / len(lengths) >= 0.95
    assert sum(length < needed for length in lengths) / len(lengths) < 0.95


def test_a_learning_rate_of_1e12_is_a_divergence_and_leaves_no_model(tmp_path: Path) -> None:
    context = _context(tmp_path, optimizer=OptimizerSettings(learning_rate=1e12, weight_decay=1e12, warmup_fraction=0))
    with pytest.raises(DivergedError, match=r"is (nan|inf) at step \d+ of 20"):
        train_sft.run(context)
    assert not (context.output / "model").exists()


def test_a_schedule_that_never_evaluates_is_refused_with_its_key(tmp_path: Path) -> None:
    context = _context(tmp_path, schedule=TrainingSchedule(max_steps=5, eval_steps=50))
    with pytest.raises(BadConfigError, match=r"train_sft\.schedule: eval_steps 50 would never evaluate"):
        train_sft.run(context)


def test_curves_hold_every_step(tmp_path: Path) -> None:
    context = _context(tmp_path)
    train_sft.run(context)
    points = [json.loads(line) for line in (context.output / "curves.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points if "loss" in point["values"]] == list(range(1, 21))


def _write_demonstrations(folder: Path, talks: list[list[dict[str, str]]]) -> Path:
    folder.mkdir()
    for file, rows in (("train", talks), ("validation", talks[:4])):
        columns = {
            "prompt": [turns[:-1] for turns in rows],
            "completion": [turns[-1:] for turns in rows],
            "demonstration_id": [str(place) for place in range(len(rows))],
        }
        pq.write_table(pa.table(columns), folder / f"{file}_demonstrations.parquet")
    return folder


def test_every_answer_of_a_demonstration_is_learnt_and_no_turn_of_the_user(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "qqqq"},
        {"role": "assistant", "content": "aaaa"},
        {"role": "user", "content": "zzzz"},
        {"role": "assistant", "content": "bbbb"},
    ]
    start = save_causal_model(tmp_path / "start", scale=0.02)
    inputs = {"demonstrations": _write_demonstrations(tmp_path / "rows", [talk] * 32), "start_model": start}
    config = TrainSftConfig(
        max_length=256,
        optimizer=OptimizerSettings(learning_rate=1e-2),
        schedule=TrainingSchedule(max_steps=30, eval_steps=30),
    )
    context = make_context(tmp_path, StageName.TRAIN_SFT, config, inputs)
    values = _values(train_sft.run(context))
    info = TrainingInfo.model_validate_json((context.output / "training_info.json").read_bytes())
    assert info.algorithm == "supervised fine-tuning on demonstrations" and info.num_examples == 32
    assert values["validation_loss"] < 0.5

    model, tokenizer = AutoModelForCausalLM.from_pretrained(context.output / "model").eval(), tiny_tokenizer()
    ids = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logps = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
    of_letter = {
        letter: logps[ids[0, 1:] == tokenizer.convert_tokens_to_ids(letter)].mean().item() for letter in "qazb"
    }
    assert min(of_letter["a"], of_letter["b"]) > -0.7
    assert max(of_letter["q"], of_letter["z"]) < -2


def test_the_tokens_of_demonstrations_are_kept_for_the_next_attempt(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Red."}]
    start = save_causal_model(tmp_path / "start", scale=0.02)
    inputs = {"demonstrations": _write_demonstrations(tmp_path / "rows", [talk * 2] * 8), "start_model": start}
    config = TrainSftConfig(max_length=256, schedule=TrainingSchedule(max_steps=2, eval_steps=2))
    context = make_context(tmp_path, StageName.TRAIN_SFT, config, inputs)
    first = train_sft.SftTraining(context).prepare()
    second = train_sft.SftTraining(context)
    assert second.prepare() == first
    assert "The tokens are those that an earlier attempt made." in (context.work / "events.jsonl").read_text()
    assert all(
        example.num_counted(0) < len(example.completions[0])
        for example in second.examples_of(second.examples.train.kept)
    )
