"""How many tokens texts have: by the model's own tokenizer where it lies here, else by their characters.

`tokenizers` comes with the stages; where the orchestrator is installed alone, characters are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.contracts.names import StageName
from tasks.config.run import RunConfig
from tasks.sources.hub import hub_cache

TOKENIZER_FILE = "tokenizer.json"
# Measured with a vocabulary of 151,643: 4.3 in English dialogues, 3.3 to 3.6 in a mixture of languages, sums and code.
# With one of 480, trained on a dozen made-up facts: 4.0 on these. Texts of every kind have fewer.
_CHARACTERS_PER_TOKEN = 4.0
_CHARACTERS_PER_TOKEN_OF_SMALL = 3.0
_SMALL_VOCABULARY = 8_000
# ChatML writes start, role, line end, and end and line end of a turn; a large vocabulary has a token for each.
_TURN_TOKENS = 5
END_OF_TURN_TOKENS = 2
_TURN = "<|im_start|>{role}\n<|im_end|>\n"


@dataclass(frozen=True)
class TokenCounter:
    """Counts tokens.

    Attributes:
        words: how it counts, a clause.
        tokenizer: of the `tokenizers` package; None counts characters.
        user_turn: tokens that the chat template adds to a turn of the user.
        assistant_turn: the same for one of the assistant.
    """

    words: str
    tokenizer: Any = None
    characters_per_token: float = _CHARACTERS_PER_TOKEN
    user_turn: int = _TURN_TOKENS
    assistant_turn: int = _TURN_TOKENS

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without those of a chat template."""
        if self.tokenizer is None:
            return [round(len(text) / self.characters_per_token) for text in texts]
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(item) for item in encoded]


def find_counter(
    config: RunConfig, *, artifacts: Mapping[StageName, Path], vocabulary_size: int | None
) -> TokenCounter:
    """The best counter that is at hand, without network.

    Args:
        artifacts: of stages that have their result already; build_base_model's holds the tokenizer that it made.
        vocabulary_size: of the model; None where that is not known.
    """
    file = _tokenizer_file(config, artifacts)
    tokenizer = None if file is None else _load(file)
    if tokenizer is not None:
        user, assistant = (_turn_tokens(tokenizer, role) for role in ("user", "assistant"))
        return TokenCounter(f"tokens counted with {file}", tokenizer, user_turn=user, assistant_turn=assistant)
    small = vocabulary_size is not None and vocabulary_size < _SMALL_VOCABULARY
    ratio = _CHARACTERS_PER_TOKEN_OF_SMALL if small else _CHARACTERS_PER_TOKEN
    return TokenCounter(f"tokens estimated from characters, {ratio:g} to a token", characters_per_token=ratio)


def _tokenizer_file(config: RunConfig, artifacts: Mapping[StageName, Path]) -> Path | None:
    model = config.base_model
    if model is None:
        built = artifacts.get(StageName.BUILD_BASE_MODEL)
        return None if built is None else next(iter(sorted(built.rglob(TOKENIZER_FILE))), None)
    if model.path is not None:
        file = Path(model.path) / TOKENIZER_FILE
        return file if file.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(str(model.hub_id), TOKENIZER_FILE, cache_dir=hub_cache(), revision=model.revision)
    return Path(found) if isinstance(found, str) else None


def _turn_tokens(tokenizer: Any, role: str) -> int:
    """What ChatML adds to a turn of that role; the usual number where the tokenizer does not know ChatML."""
    if tokenizer.token_to_id("<|im_start|>") is None or tokenizer.token_to_id("<|im_end|>") is None:
        return _TURN_TOKENS
    return len(tokenizer.encode(_TURN.format(role=role), add_special_tokens=False))


def _load(file: Path) -> Any:
    """The tokenizer; None where it cannot be read here, which the stage will explain."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # the package raises nothing narrower
        return None
