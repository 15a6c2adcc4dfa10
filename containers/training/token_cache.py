"""The token cache: tokens of a training's rows, kept beside a training's checkpoints for its next attempt.

The file is used only if its key matches the content and its sha256 is right; otherwise tokens are made, and the file is
written anew. All ranks of a stage are on one machine and see the same folder.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
import numpy as np
import tokenizers
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.configs.train_dpo import TrainDpoConfig
from containers.contracts.configs.train_reward_model import TrainRewardModelConfig
from containers.contracts.configs.train_sft import TrainSftConfig
from containers.contracts.digests import file_sha256
from containers.contracts.names import (
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
    POLICY_TRAIN_PROMPTS_FILE,
)
from containers.data.pairs import Row, RowFiles
from containers.distributed.ranks import any_rank, is_first_rank
from containers.harness.context import StageContext

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.integer[Any]]]"

KEPT_TOKENS_FILE = "tokens.safetensors"
_FORMAT = 2
_PROMPT_FILES = (
    POLICY_TRAIN_PROMPTS_FILE,
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
)
_SETTINGS = {"stage", "max_length", "completions", "chat_template", "use_cls"}


@dataclass(frozen=True)
class SplitExamples:
    """The tokenised examples of a split to train on, and the numbers of those left out.

    Attributes:
        places: place of each example's pair in the file.
        kept: the examples; in the cache without the fields of their pairs.
        num_over_long: examples longer than max_length.
        num_without_row: of the others, those with a token that has no row in the model's embedding.
        left_out_text: empty if none is left out.
    """

    places: list[int]
    kept: list[Row]
    num_over_long: int
    num_without_row: int
    left_out_text: str

    @property
    def num_left_out(self) -> int:
        """Number of examples left out, for all reasons."""
        return self.num_over_long + self.num_without_row


@dataclass(frozen=True)
class MadeTokens:
    """The result of tokenising: each split by its file's name, and a text about what the template leaves out."""

    splits: dict[str, SplitExamples]
    losses_text: str


class _UnusableFileError(Exception):
    """The file differs from what this attempt would write; the message says how."""


def tokens_key(
    context: StageContext,
    config: TrainSftConfig | TrainRewardModelConfig | TrainDpoConfig | ComputeReferenceConfig,
    tokenizer: PreTrainedTokenizerBase,
    files: RowFiles,
) -> str:
    """Return 64 hexadecimal digits over all that decides tokens, notes and counts; empty: tokens cannot be kept.

    It is empty for tokenizers written in Python: no digest covers all that they do. The key includes the stage's key,
    and with it our code.
    """
    try:
        backend = tokenizer.backend_tokenizer.to_str()
        folder = context.input_path(files.role)
        names = (files.train, files.validation, *_PROMPT_FILES)
        data = {file: file_sha256(folder / file) for file in names if (folder / file).exists()}
    except Exception:  # a backend with a part in Python raises a bare Exception
        return ""
    content = {
        "format": _FORMAT,
        "stage_key": context.spec.key,
        "settings": config.model_dump(mode="json", include=_SETTINGS),
        "data": data,
        "tokenizer": [type(tokenizer).__qualname__, backend, getattr(tokenizer, "split_special_tokens", None)],
        "template": [tokenizer.chat_template, tokenizer.special_tokens_map],
        "versions": [module.__version__ for module in (transformers, tokenizers, jinja2)],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def tokens_of_earlier_attempt(context: StageContext, key: str) -> MadeTokens | None:
    """Return what an earlier attempt kept, the same on every rank; None, with a note why, if tokens must be made.

    All ranks must call this: if one rank cannot use the file, none does, and all make their share.
    """
    found, flaw = None, ""
    if key:
        try:
            found = _read(context.checkpoints / KEPT_TOKENS_FILE, key=key)
        except FileNotFoundError:
            pass
        except _UnusableFileError as error:
            flaw = str(error)
    if any_rank(found is None):
        flaw = flaw or ("another rank cannot use them" if found is not None else "")
        if flaw:
            context.recorder.note(f"Tokens are made again; those of an earlier attempt are not used: {flaw}.")
        return None
    context.recorder.note("The tokens are those that an earlier attempt made.")
    return found


def keep_tokens(context: StageContext, tokens: MadeTokens, key: str) -> None:
    """Write the tokens for the next attempt, on the first rank. A full disk is noted, and nothing is kept."""
    if not key or not is_first_rank():
        return
    path = context.checkpoints / KEPT_TOKENS_FILE
    # safetensors writes a temporary file; a kill leaves it behind under an unknown name.
    unfinished = path.with_name(f"{path.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        arrays, words = _as_arrays(tokens)
        metadata = {"key": key, "words": words, "sha256": _checksum(key, words, arrays)}
        save_file(arrays, unfinished / path.name, metadata=metadata)
        with open(unfinished / path.name, "rb") as stream:
            os.fsync(stream.fileno())
        (unfinished / path.name).replace(path)
    except (OSError, SafetensorError) as error:
        context.recorder.note(f"Tokens are not kept for a next attempt, which will make them again: {error}.")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _read(path: Path, *, key: str) -> MadeTokens:
    """Read what `keep_tokens` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        _UnusableFileError: the file is damaged, or has another key.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata["key"] != key:
                raise _UnusableFileError(f"{path.name} is for other rows, settings, versions or another tokenizer")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if metadata["sha256"] != _checksum(key, metadata["words"], arrays):
            raise _UnusableFileError(f"{path.name} is damaged: its sha256 does not match")
        return _from_arrays(arrays, metadata["words"])
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise _UnusableFileError(f"{path.name} cannot be read ({error})") from error


def _as_arrays(tokens: MadeTokens) -> tuple[dict[str, Array], str]:
    """Return the numbers as flat arrays, and the rest as JSON."""
    arrays: dict[str, Array] = {}
    words: dict[str, Any] = {"losses": tokens.losses_text, "splits": {}}
    for name, split in tokens.splits.items():
        fields = list(split.kept[0])
        words["splits"][name] = [fields, split.num_over_long, split.num_without_row, split.left_out_text]
        arrays[f"{name}/places"] = _flat([split.places])
        for field in fields:
            lists = [example[field] for example in split.kept]
            arrays[f"{name}/{field}/values"] = _flat(lists)
            arrays[f"{name}/{field}/lengths"] = _flat([[len(values) for values in lists]])
    return arrays, json.dumps(words)


def _from_arrays(arrays: Mapping[str, Array], words: str) -> MadeTokens:
    told = json.loads(words)
    splits = {}
    for name, (fields, num_over_long, num_without_row, left_out_text) in told["splits"].items():
        columns = [
            _cut(arrays[f"{name}/{field}/values"], lengths=arrays[f"{name}/{field}/lengths"]) for field in fields
        ]
        splits[name] = SplitExamples(
            places=arrays[f"{name}/places"].tolist(),
            kept=[dict(zip(fields, values, strict=True)) for values in zip(*columns, strict=True)],
            num_over_long=num_over_long,
            num_without_row=num_without_row,
            left_out_text=left_out_text,
        )
    return MadeTokens(splits=splits, losses_text=told["losses"])


def _flat(lists: Sequence[Sequence[int]]) -> Array:
    """Return all numbers in one array, of the smallest integer type that holds them."""
    values = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=sum(map(len, lists)))
    if not values.size:
        return values
    kind = np.promote_types(np.min_scalar_type(values.min()), np.min_scalar_type(values.max()))
    return values.astype(kind, copy=False)


def _cut(values: Array, *, lengths: Array) -> list[list[int]]:
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [values[start:end].tolist() for start, end in pairwise([0, *ends])]


def _checksum(key: str, words: str, arrays: Mapping[str, Array]) -> str:
    """Return the hexadecimal sha256 over all that the file holds."""
    digest = hashlib.sha256(f"{key}\0{words}\0".encode())
    for name in sorted(arrays):
        digest.update(f"{name}\0{arrays[name].dtype.str}\0{arrays[name].size}\0".encode())
        digest.update(arrays[name].data.cast("B"))
    return digest.hexdigest()
