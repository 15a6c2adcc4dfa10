"""The scorer: it computes every score of a reward model, in all stages."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.distributed.spread import Spread
from containers.harness.errors import BadDataError, DivergedError, MissingPrerequisiteError
from containers.models.loading import SCORE_HEAD, load_reward_model, load_tokenizer, require_own_tokenizer, require_rows
from containers.models.token_batches import tokens_of_all
from containers.models.tokenizer_loading import spelled_out, token_without_row
from containers.models.trial import trial
from containers.packing.scoring import computed_tokens, packed_rows, score_rows, shared_groups, why_padded
from containers.scoring.batches import device_batch_tokens, length_batches
from containers.scoring.rounding import allowed_difference, num_layers_of

Conversation = Sequence[Mapping[str, str]]
# One value for each item, by the model.
Work = Callable[[PreTrainedModel, list[Any]], list[Any]]

# Number of conversations that are scored both ways before packed scores are used.
_TRIED = 3


class RewardScorer:
    """Scores conversations with a reward model.

    The score is read at the last token that is no pad token, as in transformers and so in training; the head is applied
    in float32 to the last tokens only. Conversations are packed in rows without padding, and a shared prompt is
    computed once. Some models cannot be packed, by their configuration or by a trial on the first conversations. They
    get batches sorted by length and padded on the right, without a padding mask: under causal attention a pad token
    cannot reach a token before it. Either way a score does not depend on its neighbours (except for the last bits).

    Args:
        model: sequence classifier with one output, plain or with LoRA adapters; put into evaluation mode.
        max_length: longest conversation in tokens; a longer one is an error, never cut.
        batch_size: maximum conversations per forward.
        batch_tokens: maximum tokens per forward, with padding; None: by the model's device.
        spread: programs with the same model, of `containers.models.over_gpus`.

    Attributes:
        padded_since: why conversations are padded, as a clause; empty while they are packed.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        batch_size: int,
        batch_tokens: int | None = None,
        spread: Spread[PreTrainedModel] | None = None,
    ) -> None:
        self.model = model.eval()
        self.spread = spread
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.batch_size = batch_size
        self._classifier = classifier_of(model)
        self.batch_tokens = batch_tokens or device_batch_tokens(self._classifier.device)
        self._pad_token_id = int(self._classifier.config.get_text_config().pad_token_id)
        self.padded_since = why_padded(self._classifier, max_length=max_length)
        self._tried = False

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        max_length: int,
        batch_size: int,
        batch_tokens: int | None = None,
        spills: bool = False,
    ) -> "RewardScorer":
        """Load the scorer of a saved reward model with its tokenizer, on one device.

        Args:
            spills: layers for which the device has no room stay in host memory.

        Raises:
            MissingPrerequisiteError: weights are missing, for example the score head, or the folder is damaged.
            DivergedError: a weight is NaN or infinite.
        """
        model, tokenizer = load_reward_model(folder, dtype=dtype, device=device, spills=spills), load_tokenizer(folder)
        require_own_tokenizer(model, tokenizer, folder=folder)
        return cls(model, tokenizer, max_length=max_length, batch_size=batch_size, batch_tokens=batch_tokens)

    def close(self) -> None:
        """End the programs on further GPUs."""
        if self.spread is not None:
            self.spread.close()
            self.spread = None

    def everywhere(self, work: Work, item: Any) -> None:
        """Have `work`, a function at the top of a module, done on the model with that item, wherever it is held."""
        if self.spread is None:
            work(self._classifier, [item])
        else:
            self.spread.everywhere(self._classifier, work, item)

    def compute(self, work: Work, items: Sequence[Any], *, sizes: Sequence[int]) -> list[Any]:
        """Return what `work`, a function at the top of a module, computes of each item with the model.

        Args:
            sizes: how much work each item is.
        """
        if self.spread is None:
            return work(self._classifier, list(items))
        return self.spread.map(self._classifier, work, items, sizes=sizes)

    def tokenize(self, conversation: Conversation) -> list[int]:
        """Return RewardTrainer's tokens for prompt plus completion: the chat template over all messages."""
        return conversation_tokens(self.tokenizer, conversation)

    def tokenize_all(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Return the tokens of many conversations, computed on all cores."""
        return tokens_of_all(self.tokenizer, conversations)

    def fits(self, conversation: Conversation) -> bool:
        """Whether the conversation is at most `max_length` tokens."""
        return len(self.tokenize(conversation)) <= self.max_length

    def score(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one score per conversation, in order; each conversation ends with the assistant's message.

        Raises:
            BadDataError: a conversation has more than `max_length` tokens (check `fits` first), or spells a special
                token without a row in the model.
            DivergedError: a score is NaN or infinite.
        """
        return self.score_tokens(self.tokenize_all(conversations))

    def score_written(self, conversations: Sequence[Conversation]) -> list[float]:
        """Score conversations that a policy wrote, as `score`, but also those with a special token without a row.

        A policy may spell such a token letter by letter, and no user can remove it from the text. So the model reads
        the letters.
        """
        return self.score_tokens(self._written(conversations))

    def states(self, conversations: Sequence[Conversation]) -> Tensor:
        """Return what the score head is applied to, for conversations that a policy wrote: [N, hidden], float32 on CPU.

        Raises the errors of `score_written`.
        """
        made = self._written(conversations)
        sequences = [self._without_padding(ids, number=number) for number, ids in enumerate(made, start=1)]
        require_rows(self._classifier, self.tokenizer, sequences)
        found = torch.zeros(len(sequences), self._classifier.config.get_text_config().hidden_size)
        for batch in self._batches(sequences):
            found[batch] = _last_states(self._classifier, [sequences[place] for place in batch]).cpu()
        return found

    def _written(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        made = self.tokenize_all(conversations)
        return [spelled_out(self.tokenizer, ids, num_rows=self.num_rows) for ids in made]

    def score_tokens(self, token_ids: Sequence[Sequence[int]]) -> list[float]:
        """Return one score per token sequence, in order; raises the errors of `score`."""
        sequences = [self._without_padding(ids, number=number) for number, ids in enumerate(token_ids, start=1)]
        require_rows(self._classifier, self.tokenizer, sequences)
        if not self._tried and sequences and not self.padded_since:
            self._try_packed(sequences)
        scores = self._padded(sequences) if self.padded_since else self._packed(sequences)
        self._refuse_non_finite(scores)
        return scores

    @property
    def num_rows(self) -> int:
        """Number of rows of the model's embedding."""
        return int(self._classifier.get_input_embeddings().weight.shape[0])

    @property
    def has_all_rows(self) -> bool:
        """Whether the model has a row for every token of the tokenizer; Gemma 3's text models lack one."""
        return max(self.tokenizer.get_vocab().values(), default=-1) < self.num_rows

    def token_without_row(self, tokens: Sequence[int]) -> str:
        """Return a token of the sequence without a row, for which `score_tokens` refuses it; empty: there is none."""
        return token_without_row(self.tokenizer, tokens, num_rows=self.num_rows)

    def _try_packed(self, sequences: Sequence[list[int]]) -> None:
        """Score a few conversations both ways; the scores differ if attention does more than mask and weigh."""
        self._tried = True
        asked = sorted(sequences, key=len)[-1:] + list(sequences[:_TRIED])
        padded = self._padded(asked)
        with trial() as tried:
            found = self._packed(asked)
        if tried.failure:
            self.padded_since = f"it fails on packed rows: {tried.failure}"
            return
        difference = max(abs(one - other) for one, other in zip(found, padded, strict=True))
        num_layers = num_layers_of(self._classifier)
        if difference > allowed_difference(self._classifier.dtype, padded, num_layers=num_layers):
            self.padded_since = f"scores from packed rows differ by {difference:.2g} from those of single ones"

    def _packed(self, sequences: Sequence[list[int]]) -> list[float]:
        bounds = {"max_items": self.batch_size, "max_tokens": self.batch_tokens}
        rows = packed_rows(sequences, shared_groups(sequences, **bounds), **bounds)
        tokens = [[[sequences[place] for place in group] for group in row] for row in rows]
        of_rows = self.compute(packed_row_scores, tokens, sizes=[sum(map(computed_tokens, row)) for row in tokens])
        found = [score for row in of_rows for score in row]
        scores = [math.nan] * len(sequences)
        for place, score in zip((place for row in rows for group in row for place in group), found, strict=True):
            scores[place] = score
        return scores

    def _padded(self, sequences: Sequence[list[int]]) -> list[float]:
        scores = [math.nan] * len(sequences)
        batches = self._batches(sequences)
        tokens = [[sequences[place] for place in batch] for batch in batches]
        sizes = [len(batch) * len(batch[0]) for batch in tokens]
        of_batches = self.compute(padded_batch_scores, tokens, sizes=sizes)
        for batch, found in zip(batches, of_batches, strict=True):
            for index, score in zip(batch, found, strict=True):
                scores[index] = score
        return scores

    def _batches(self, sequences: Sequence[list[int]]) -> list[list[int]]:
        """Return the places of the sequences in batches, the longest first."""
        lengths = [len(tokens) for tokens in sequences]
        return list(length_batches(lengths, max_items=self.batch_size, max_tokens=self.batch_tokens))

    def _without_padding(self, ids: Sequence[int], *, number: int) -> list[int]:
        tokens = [int(token) for token in ids]
        while len(tokens) > 1 and tokens[-1] == self._pad_token_id:
            tokens.pop()
        if not tokens:
            raise BadDataError(f"Conversation {number} has no token, so it has no score.")
        if len(tokens) > self.max_length:
            raise BadDataError(
                f"Conversation {number} has {len(tokens)} tokens, more than max_length {self.max_length}. "
                f"Leave it out or raise max_length: the score of a cut conversation is meaningless."
            )
        return tokens

    def _refuse_non_finite(self, scores: Sequence[float]) -> None:
        bad = [index for index, score in enumerate(scores, start=1) if not math.isfinite(score)]
        if bad:
            raise DivergedError(
                f"{len(bad)} of {len(scores)} scores are not finite, the first one that of conversation {bad[0]} "
                f"({scores[bad[0] - 1]}). The reward model cannot be used."
            )


def packed_row_scores(classifier: PreTrainedModel, rows: Sequence[Sequence[Sequence[list[int]]]]) -> list[list[float]]:
    """Return for each row the scores of its conversations, in the order of groups and members."""
    found = iter(score_rows(classifier, score_head_weight(classifier), rows))
    return [[next(found) for group in row for _ in group] for row in rows]


def padded_batch_scores(classifier: PreTrainedModel, batches: Sequence[Sequence[list[int]]]) -> list[list[float]]:
    """Return for each batch of sequences, the longest first, their scores."""
    head = score_head_weight(classifier).detach().float()
    return [(_last_states(classifier, batch) @ head.T).squeeze(-1).tolist() for batch in batches]


@torch.no_grad()
def _last_states(classifier: PreTrainedModel, sequences: Sequence[list[int]]) -> Tensor:
    """Return [B, hidden] in float32: the state at the last token of B sequences, the longest first."""
    device, width = classifier.device, len(sequences[0])
    pad = int(classifier.config.get_text_config().pad_token_id)
    padded = [tokens + [pad] * (width - len(tokens)) for tokens in sequences]
    input_ids = torch.tensor(padded, dtype=torch.long, device=device)
    last = torch.tensor([len(tokens) - 1 for tokens in sequences], device=device)
    trunk: Any = getattr(classifier, classifier.base_model_prefix)
    hidden: Tensor = trunk(input_ids=input_ids, use_cache=False).last_hidden_state
    return hidden[torch.arange(len(sequences), device=device), last].float()


def conversation_tokens(tokenizer: PreTrainedTokenizerBase, conversation: Conversation) -> list[int]:
    """Return the tokens of a whole conversation in the tokenizer's chat template, like TRL's RewardTrainer."""
    messages = [dict(message) for message in conversation]
    encoded: Mapping[str, list[int]] = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
    return list(encoded["input_ids"])


def classifier_of(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """Return the sequence classifier inside a PeftModel, with its adapters in place, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def score_head_weight(model: PreTrainedModel | PeftModel) -> Tensor:
    """Return the [1, hidden] weight of the score head in use; with LoRA, the trained copy in modules_to_save."""
    head: Any = getattr(classifier_of(model), SCORE_HEAD)
    copies = getattr(head, "modules_to_save", None)
    weight: Tensor = head.weight if copies is None else copies[head.active_adapters[0]].weight
    return weight


def score_head_sha256(folder_or_model: Path | PreTrainedModel | PeftModel) -> str:
    """Return the digest of the score head's weight (float32, row-major) of a saved folder (merged, adapter) or a model.

    Raises:
        MissingPrerequisiteError: the folder's files hold no score head.
    """
    weight = (
        saved_score_head(folder_or_model) if isinstance(folder_or_model, Path) else score_head_weight(folder_or_model)
    )
    values = weight.detach().float().cpu().contiguous().numpy().astype("<f4")
    return hashlib.sha256(values.tobytes()).hexdigest()


def saved_score_head(folder: Path) -> Tensor:
    """Read the [1, hidden] weight of the score head from a saved folder, merged or adapter.

    Raises:
        MissingPrerequisiteError: the folder's files hold no score head.
    """
    wanted = f"{SCORE_HEAD}.weight"
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                if name == wanted or name.endswith(f".{wanted}"):
                    weight: Tensor = tensors.get_tensor(name)
                    return weight
    raise MissingPrerequisiteError(f"{folder} holds no {wanted}: its scores would come from a random head.")
