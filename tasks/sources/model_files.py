"""Which files of a model folder or repository a run uses, and whether they suffice. Pure: names in, verdict out."""

import json
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

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


def model_file_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of a repository's files that are fetched, sorted."""
    return tuple(
        sorted(path for path in paths if "/" not in path and _any(path, _PATTERNS) and not _any(path, _LEFT_OUT))
    )


def demand_model_files(
    names: Collection[str], read: Callable[[str], str], *, where: str, key: str = "base_model"
) -> None:
    """Refuse what cannot be started from: no configuration, no safetensors, missing shards, no tokenizer or template.

    Args:
        names: all files at the top of the folder, also those that are never loaded.
        read: text of one of them.
        where: folder or repository, for the message.
        key: where the model stands in the configuration, for the message.

    Raises:
        UnusableSourceError: something is missing; the message names it.
    """
    if "config.json" not in names:
        if "adapter_config.json" in names:
            raise UnusableSourceError(
                f"{where} is an adapter, which is nothing without its base model.",
                f"Name the merged model in {key}; one that was trained here lies in `merged` beside its adapter. "
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
            f"{where} has no chat template ({_TEMPLATE_FILE}, or `chat_template` in tokenizer_config.json), so nobody "
            f"knows how it wants a dialogue written.",
            f"Start from an instruct model, or put a {_TEMPLATE_FILE} beside its tokenizer files.",
        )


def weight_files(names: Iterable[str]) -> tuple[str, ...]:
    """Those of a folder's files that hold the weights that are loaded, sorted."""
    return tuple(sorted(name for name in names if _any(name, ("*.safetensors",)) and not _any(name, _LEFT_OUT)))


def weight_index(names: Collection[str]) -> str | None:
    """The file that says which weight lies in which file; None where there is one file only."""
    return _INDEX if _INDEX in names else None


def _demand_weights(names: Collection[str], read: Callable[[str], str], *, where: str) -> None:
    weights = set(weight_files(names))
    if not weights:
        pickled = sorted(name for name in names if _any(name, _PICKLED))
        found = f"only {', '.join(pickled[:3])}, and loading pickle executes code" if pickled else "none"
        raise UnusableSourceError(
            f"{where} has no weights as safetensors: {found}.",
            "Take a revision with safetensors, or convert it on a machine of no value: "
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
