"""Examples that do not fit must be counted out, and the message must name the length that would have kept them."""

import json
from pathlib import Path

import pytest

from containers.contracts.configs.parts.training import TrainingSchedule
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import StageName
from containers.harness.errors import BadConfigError, BadDataError
from containers.training.examples import TrainingExamples, read_training_examples, resolve_training_schedule
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import tiny_tokenizer

pytestmark = pytest.mark.stages


def _read(
    tmp_path: Path, lengths: list[int], config: TrainSftConfig | TrainRewardModelConfig
) -> tuple[TrainingExamples, str]:
    """One training example of each length, one validation example of 8 tokens; and the notes that were taken."""
    pairs = write_pairs(tmp_path / "pairs", colour_rows(len(lengths)), colour_rows(1, seed=9))
    context = make_context(tmp_path, StageName(config.stage), config, {"pairs": pairs})
    left = iter([*lengths, 8])
    examples = read_training_examples(
        context,
        config,
        tiny_tokenizer(),
        tokenised=lambda rows, *, losses: [[{"ids": [0] * next(left)}] for _ in rows],
        token_fields=["ids"],
        num_rows=1,
        unit="pairs",
    )
    events = context.work / "events.jsonl"
    notes = [json.loads(line)["text"] for line in events.read_text().splitlines()] if events.exists() else []
    return examples, "\n".join(notes)


def test_examples_at_the_limit_are_kept_and_longer_ones_counted_with_the_lengths(tmp_path: Path) -> None:
    examples, notes = _read(tmp_path, [*range(1, 20), 1000], TrainSftConfig(max_length=18))
    assert [len(example["ids"]) for example in examples.train.kept] == list(range(1, 19))
    assert (examples.train.num_left_out, examples.validation.num_left_out) == (2, 0)
    assert notes == (
        "2 of 20 training pairs are left out: longer than 18 tokens (train_sft.max_length). 95% of all have at most "
        "19 tokens, the longest 1,000."
    )


def test_where_all_fit_nothing_is_said(tmp_path: Path) -> None:
    examples, notes = _read(tmp_path, [5, 6, 7], TrainSftConfig(max_length=8))
    assert (len(examples.train.kept), examples.train.left_out_text, notes) == (3, "", "")


@pytest.mark.parametrize("config", [TrainSftConfig(max_length=8), TrainRewardModelConfig(max_length=8)])
def test_where_none_fits_the_stages_own_setting_is_named_and_the_length_that_keeps_most(
    tmp_path: Path, config: TrainSftConfig | TrainRewardModelConfig
) -> None:
    with pytest.raises(BadDataError) as caught:
        _read(tmp_path, [*range(41, 60), 3000], config)
    assert str(caught.value) == (
        f"Not one of 20 training pairs fits in {config.stage}.max_length 8: the shortest has 41 tokens; 95% of all "
        f"have at most 59 tokens, the longest 3,000. Raise {config.stage}.max_length to 59 to keep most of them."
    )
    assert "max_characters" not in str(caught.value)


def test_a_batch_that_cannot_be_filled_says_how_many_the_length_left_out(tmp_path: Path) -> None:
    config = TrainSftConfig(max_length=8, schedule=TrainingSchedule())
    examples, _ = _read(tmp_path, [5, 6, *range(41, 59)], config)
    context = make_context(tmp_path, StageName.TRAIN_SFT, config, {})
    with pytest.raises(BadConfigError) as caught:
        resolve_training_schedule(context, config, examples)
    message = str(caught.value)
    assert message.startswith("train_sft.schedule: 2 examples are fewer than one global batch of 8")
    assert "18 of 20 training pairs are left out: longer than 8 tokens (train_sft.max_length)." in message
