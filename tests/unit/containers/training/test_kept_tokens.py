"""Tokens that an earlier attempt made are those that would be made now, or they are made again: nobody would notice."""

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
from safetensors.numpy import save_file
from tokenizers import NormalizedString, PreTokenizedString, pre_tokenizers

from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.names import TUNE_PAIRS_FILE, StageName
from containers.training.examples import read_training_examples
from containers.training.token_cache import KEPT_TOKENS_FILE
from tests.unit.factories.kept_tokens_factory import (
    MADE_AGAIN,
    REWARD,
    SFT,
    USED,
    Stage,
    attempt,
    file_of,
    give,
    notes,
    rows,
    written,
)
from tests.unit.factories.prompt_factory import write_prompts
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs
from tests.unit.factories.tiny_policy import CHATML, tiny_tokenizer

pytestmark = pytest.mark.stages

SFT_CONFIG = TrainSftConfig(max_length=120)


@pytest.mark.parametrize("stage", [SFT, REWARD])
def test_a_second_attempt_has_the_same_examples_and_the_same_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    written(tmp_path)
    made, warnings = attempt(monkeypatch, tmp_path, stage)
    read, told = attempt(monkeypatch, tmp_path, stage)
    assert told == [USED, *warnings]
    assert read == made
    # Equal numbers may still be of another type, and equal rows have their fields in another order.
    assert repr(read) == repr(made)
    assert made.train.num_left_out and "left out" in warnings[0]
    assert "leaves out the turn of the role system" in warnings[-1]


def _change_pair(folder: Path, stage: Stage) -> Stage:
    write_pairs(folder / "pairs", [*rows()[:-1], colour_rows(1, seed=5)[0]])
    return stage


def _change_validation(folder: Path, stage: Stage) -> Stage:
    path = folder / "pairs" / TUNE_PAIRS_FILE
    pq.write_table(pq.read_table(path).slice(0, 20), path)
    return stage


def _change_prompts(folder: Path, stage: Stage) -> Stage:
    write_prompts(folder / "pairs", train=["Why?", "Where?"])
    return stage


def _change_template(folder: Path, stage: Stage) -> Stage:
    give(folder, template=CHATML)
    return stage


def _change_tokenizer(folder: Path, stage: Stage) -> Stage:
    give(folder, token="日本")
    return stage


def _change_max_length(folder: Path, stage: Stage) -> Stage:
    return stage[0], stage[1].model_copy(update={"max_length": 400})


def _configure_template(folder: Path, stage: Stage) -> Stage:
    return stage[0], stage[1].model_copy(update={"chat_template": CHATML})


@pytest.mark.parametrize("stage", [SFT, REWARD])
@pytest.mark.parametrize(
    "change",
    [
        _change_pair,
        _change_validation,
        _change_prompts,
        _change_template,
        _change_tokenizer,
        _change_max_length,
        _configure_template,
    ],
)
def test_of_other_content_nothing_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage, change: Callable[[Path, Stage], Stage]
) -> None:
    written(tmp_path)
    before, _ = attempt(monkeypatch, tmp_path, stage)
    stage = change(tmp_path, stage)
    after, told = attempt(monkeypatch, tmp_path, stage)
    assert told[0].startswith(MADE_AGAIN) or told[1].startswith(MADE_AGAIN)
    assert USED not in told
    file_of(tmp_path, stage).unlink()
    assert after == attempt(monkeypatch, tmp_path, stage)[0]
    if change is not _change_prompts:
        assert after != before


@pytest.mark.parametrize("change", ["completions", "use_cls", "stage key", "version"])
def test_of_other_settings_or_programs_nothing_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    written(tmp_path)
    stage = REWARD if change == "use_cls" else SFT
    attempt(monkeypatch, tmp_path, stage)
    changes: dict[str, object] = {"completions": "chosen"} if change == "completions" else {}
    changes |= {"use_cls": True} if change == "use_cls" else {}
    if change == "version":
        monkeypatch.setattr(tokenizers, "__version__", "0.99")
    overrides = {"key": "d" * 64} if change == "stage key" else {}
    changed = (stage[0], stage[1].model_copy(update=changes))
    _, told = attempt(monkeypatch, tmp_path, changed, **overrides)
    assert any(note.startswith(MADE_AGAIN) for note in told), told
    assert USED in attempt(monkeypatch, tmp_path, changed, **overrides)[1]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def _change_the_words(path: Path) -> None:
    content = path.read_bytes()
    assert b"left out" in content
    path.write_bytes(content.replace(b"left out", b"left in "))


def _put_another_there(path: Path) -> None:
    save_file({"train.parquet/places": np.arange(3)}, path)


def _put_a_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_cut, _cut_to_nothing, _flip_a_bit, _change_the_words, _put_another_there])
def test_a_damaged_file_is_noted_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    written(tmp_path)
    made, warnings = attempt(monkeypatch, tmp_path, SFT)
    damage(file_of(tmp_path, SFT))
    again, told = attempt(monkeypatch, tmp_path, SFT)
    assert told[0].startswith(f"{MADE_AGAIN}{KEPT_TOKENS_FILE} ")
    assert (again, told[1:]) == (made, warnings)
    assert attempt(monkeypatch, tmp_path, SFT) == (made, [USED, *warnings])


def test_where_the_file_cannot_be_written_the_attempt_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    made, warnings = attempt(monkeypatch, tmp_path, SFT)
    _put_a_folder_there(file_of(tmp_path, SFT))
    again, told = attempt(monkeypatch, tmp_path, SFT)
    assert again == made and told[1:-1] == warnings
    assert told[-1].startswith("Tokens are not kept for a next attempt, which will make them again: ")


@contextmanager
def no_file_above(size_bytes: int) -> Iterator[None]:
    """As on a disk that is nearly full: what is longer cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_noted_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    with no_file_above(4096):
        made, told = attempt(monkeypatch, tmp_path, SFT)
    assert told[-1].startswith("Tokens are not kept for a next attempt, which will make them again: ")
    assert list(file_of(tmp_path, SFT).parent.iterdir()) == []
    assert attempt(monkeypatch, tmp_path, SFT) == (made, told[:-1])


def test_what_a_kill_in_the_middle_of_writing_left_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    attempt(monkeypatch, tmp_path, SFT)
    file = file_of(tmp_path, SFT)
    unfinished = file.with_name(f"{KEPT_TOKENS_FILE}-unfinished")
    unfinished.mkdir()
    file.rename(unfinished / ".tmpXyz")
    assert USED not in attempt(monkeypatch, tmp_path, SFT)[1]
    assert [path.name for path in file.parent.iterdir()] == [KEPT_TOKENS_FILE]
    assert USED in attempt(monkeypatch, tmp_path, SFT)[1]


def test_tokens_of_a_tokenizer_with_a_part_in_python_are_not_kept(tmp_path: Path) -> None:
    """Nothing tells one program from another."""

    class Words:
        def pre_tokenize(self, text: PreTokenizedString) -> None:
            text.split(self._cut)

        def _cut(self, number: int, text: NormalizedString) -> list[NormalizedString]:
            return [text]

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Words())
    context = make_context(
        tmp_path, StageName.TRAIN_SFT, SFT_CONFIG, {"pairs": write_pairs(tmp_path / "pairs", colour_rows(3))}
    )
    for _ in range(2):
        examples = read_training_examples(
            context,
            SFT_CONFIG,
            tokenizer,
            tokenised=lambda rows, *, losses: [[{"ids": [1, 2]}] for _ in rows],
            token_fields=["ids"],
            num_rows=len(tokenizer),
            unit="pairs",
        )
        assert len(examples.train.kept) == 3
    assert notes(context.work) == []
    assert list(context.checkpoints.iterdir()) == []
