"""Check a model folder: required files are there, and weights are complete."""

import json
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from containers.formatting import one_line
from tasks.sources.errors import UnusableSourceError

# Weights, configuration and tokenizer at the top of the repository. No *.bin and *.pt (pickle executes code when it is
# loaded), no *.py (code of the repository is never run), no folders (checkpoints, other formats).
_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
# A second copy of the weights in another layout.
_LEFT_OUT = ("consolidated*.safetensors",)
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TOKENIZERS = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.json", "vocab.txt")
_INDEX = "model.safetensors.index.json"
_TEMPLATE_FILE = "chat_template.jinja"
# As the safetensors library allows.
_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_REASON_CHARACTERS = 120
_AGAIN = "Download it again, or save it again with `save_pretrained`."
# Archives of torch, and pickles of protocol 2 to 5.
_PICKLE_BEGINNINGS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_NO_PICKLE = "Loading pickle executes code: take a revision with safetensors, or save it again with `save_pretrained`."
# Bits per element for the safetensors types that models use; the size of other types is not checked.
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64"), 64),
}


def model_file_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Files of a repository that are fetched, sorted."""
    return tuple(
        sorted(path for path in paths if "/" not in path and _any(path, _PATTERNS) and not _any(path, _LEFT_OUT))
    )


def require_model_files(
    names: Collection[str], read: Callable[[str], str], *, where: str, key: str = "base_model"
) -> None:
    """Refuse a model without configuration, safetensors, all its shards, tokenizer or chat template.

    Args:
        names: all files at the top of the folder, also those that are never loaded.
        read: returns the text of one of them.
        where: folder or repository, for the message.
        key: key of the model in the configuration, for the message.

    Raises:
        UnusableSourceError: something is missing; the message names it.
    """
    if "config.json" not in names:
        if "adapter_config.json" in names:
            raise UnusableSourceError(
                f"{where} is an adapter, which cannot be used without its base model.",
                f"Name the merged model in {key}; one that was trained here is in `merged` beside its adapter. "
                "`rlhf certify -m` and `rlhf score -m` take the adapter itself.",
            )
        raise UnusableSourceError(f"{where} has no config.json, so it is no model folder.", f"Correct {key}.")
    _object(read("config.json"), name="config.json", where=where)
    _demand_weights(names, read, where=where)
    if not any(_any(name, _TOKENIZERS) for name in names):
        raise UnusableSourceError(
            f"{where} has no tokenizer (tokenizer.json, *.model, *.tiktoken or vocab files).",
            "Put the tokenizer files of its base model beside the weights.",
        )
    if _TEMPLATE_FILE not in names and not _template_in_configuration(names, read, where=where):
        raise UnusableSourceError(
            f"{where} has no chat template ({_TEMPLATE_FILE}, or `chat_template` in tokenizer_config.json), so "
            f"the format of its dialogues is not known.",
            f"Start from an instruct model, or put a {_TEMPLATE_FILE} beside its tokenizer files.",
        )


def require_whole_model(folder: Path, names: Collection[str]) -> None:
    """Refuse a model whose weights are not whole, as `require_whole_weights`; `names` are the folder's files."""
    require_whole_weights(folder, _weight_files(names), index=_INDEX if _INDEX in names else None)


def _weight_files(names: Iterable[str]) -> tuple[str, ...]:
    """Files of a folder that hold the weights that are loaded, sorted."""
    return tuple(sorted(name for name in names if name.endswith(".safetensors") and not _any(name, _LEFT_OUT)))


def _demand_weights(names: Collection[str], read: Callable[[str], str], *, where: str) -> None:
    weights = set(_weight_files(names))
    if not weights:
        pickled = sorted(name for name in names if _any(name, _PICKLED))
        found = f"only {', '.join(pickled[:3])}, and loading pickle executes code" if pickled else "none"
        raise UnusableSourceError(
            f"{where} has no weights as safetensors: {found}.",
            "Take a revision with safetensors, or convert it on a disposable machine: "
            "`AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)`.",
        )
    if _INDEX in names:
        shards = _object(read(_INDEX), name=_INDEX, where=where).get("weight_map")
        listed = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else set()
        missing = sorted(listed - weights)
        if missing:
            raise UnusableSourceError(
                f"{where} is incomplete: {len(missing)} of {len(listed)} weight files that {_INDEX} lists are missing, "
                f"the first is {missing[0]}.",
                "Download it again.",
            )


def _template_in_configuration(names: Collection[str], read: Callable[[str], str], *, where: str) -> bool:
    name = "tokenizer_config.json"
    return name in names and bool(_object(read(name), name=name, where=where).get("chat_template"))


def _object(text: str, *, name: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableSourceError(f"{name} of {where} is no JSON ({error}).", "Download it again.") from error
    if not isinstance(value, dict):
        raise UnusableSourceError(f"{name} of {where} is JSON, but no object.", "Download it again.")
    return value


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def require_whole_weights(folder: Path, names: Iterable[str], *, index: str | None = None) -> None:
    """Refuse files that are no safetensors, are cut off, or lack weights that the index assigns to them.

    Args:
        names: the safetensors files.
        index: the file that maps weights to these files; None if there is no such file.

    Raises:
        UnusableSourceError: the message names the file, and what is wrong.
    """
    tensors = {name: _tensors(folder / name) for name in names}
    if index is None:
        return
    try:
        places = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].items()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableSourceError(
            f"{folder / index} has no readable `weight_map` ({_reason(error)}).", "Download it again."
        ) from error
    lost = sorted((str(shard), str(tensor)) for tensor, shard in places if tensor not in tensors.get(str(shard), ()))
    if lost:
        shard, tensor = lost[0]
        more = f", and {len(lost) - 1:,} more like it" if len(lost) > 1 else ""
        raise UnusableSourceError(
            f"{folder / shard} does not hold {one_line(tensor, _REASON_CHARACTERS)}, which {index} looks for in it"
            f"{more}: the files are of different versions, or one has another's name.",
            "Download all of them again.",
        )


def _tensors(path: Path) -> frozenset[str]:
    """The names of the tensors in the file.

    Raises:
        UnusableSourceError: it is no safetensors file, or a damaged one.
    """
    try:
        num_bytes = path.stat().st_size
        with open(path, "rb") as stream:
            beginning = stream.read(_LENGTH_BYTES)
            length = int.from_bytes(beginning, "little")
            is_length = len(beginning) == _LENGTH_BYTES and 2 <= length <= _MAX_HEADER_BYTES
            header = stream.read(length) if is_length else b""
    except OSError as error:
        raise UnusableSourceError(f"{path} cannot be read: {error}.", "Change its mode or owner.") from error
    # The length 1,152 of a header looks like a pickle, so check first whether a header follows.
    if not header.startswith(b"{") and beginning.startswith(_PICKLE_BEGINNINGS):
        raise UnusableSourceError(f"{path} is a pickle under the name of a safetensors file.", _NO_PICKLE)
    if not is_length and beginning.startswith(b"version "):
        raise UnusableSourceError(f"{path} is a pointer of Git LFS and not the weights.", "Run `git lfs pull` there.")
    if not is_length:
        raise UnusableSourceError(f"{path} is no safetensors file: it does not begin with a length.", _AGAIN)
    if len(header) < length:
        raise _cut_off(path, num_bytes, wanted=_LENGTH_BYTES + length)
    try:
        entries = _entries(header)
        end = _LENGTH_BYTES + length + _end_of(entries)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UnusableSourceError(f"{path} is a damaged safetensors file: {_reason(error)}.", _AGAIN) from error
    if num_bytes < end:
        raise _cut_off(path, num_bytes, wanted=end)
    if num_bytes > end:
        raise UnusableSourceError(
            f"{path} is a damaged safetensors file: it has {num_bytes:,} bytes, its header {end:,}.", _AGAIN
        )
    return frozenset(entries)


def _entries(header: bytes) -> dict[str, Any]:
    value = json.loads(header)
    if not isinstance(value, dict):
        raise ValueError("its header is no JSON object")
    return {name: entry for name, entry in value.items() if name != "__metadata__"}


def _end_of(entries: dict[str, Any]) -> int:
    """Offset at which the last tensor ends. Tensors must follow each other without gaps.

    Raises:
        ValueError: they overlap, leave gaps, or do not have the size that type and shape give.
    """
    end = 0
    for (start, stop), name in sorted(
        (tuple(map(int, entry["data_offsets"])), name) for name, entry in entries.items()
    ):
        shown = one_line(name, _REASON_CHARACTERS)
        if start != end or stop < start:
            raise ValueError(f"{shown} is at {start:,} to {stop:,}, but the one before ends at {end:,}")
        bits = _BITS.get(str(entries[name]["dtype"]))
        wanted = bits and _num_elements(entries[name]["shape"]) * bits // 8
        if wanted is not None and wanted != stop - start:
            raise ValueError(f"{shown} has {stop - start:,} bytes, its type and shape need {wanted:,}")
        end = stop
    return end


def _num_elements(shape: list[int]) -> int:
    """Number of elements of that shape. Stops at 2**63: the product of a forged shape may have billions of digits."""
    total = 1
    for length in shape:
        total *= int(length)
        if total > 2**63:
            raise ValueError("a shape has more elements than possible")
    return total


def _cut_off(path: Path, num_bytes: int, *, wanted: int) -> UnusableSourceError:
    return UnusableSourceError(
        f"{path} is cut off: it has {num_bytes:,} bytes, its header needs {wanted:,}.", "Download it again."
    )


def _reason(error: Exception) -> str:
    return one_line(str(error), _REASON_CHARACTERS).rstrip(".")
