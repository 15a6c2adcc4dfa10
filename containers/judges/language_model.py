"""A language model of this machine as a judge: which letter it would write, for each pair in both orders.

It writes nothing: the probabilities of the letters A and B after the question are compared. So a judgement is the same
each time, and a model that would write something else than a letter is noticed.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from containers.contracts.configs.parts.judge_question import judge_question, judge_version
from containers.contracts.configs.parts.judges import LanguageModelJudge
from containers.contracts.names import JUDGE_INPUT
from containers.distributed.devices import compute_device, compute_dtype
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.judges.base import Pair, StartedJudge, rows_at_a_time
from containers.judges.orders import Chosen, JudgeOfOrders
from containers.models.chat_template import thinking
from containers.models.loading import load_causal_model, load_tokenizer, position_limit
from containers.rewards.base import Rewarding
from containers.scoring.batches import length_batches

# Below this share of probability on the two letters together, the model would write something else.
_LEAST_ON_LETTERS = 0.5
# Closer probabilities than this share are a tie.
_TIE = 0.02


class Letters(Protocol):
    """What computes the model.

    Attributes:
        longest: tokens of the longest question.
    """

    longest: int

    def chances(self, questions: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        """Return for each question the probability of each letter as the next token."""

    def close(self) -> None:
        """End what this started."""


class LanguageModel(JudgeOfOrders):
    """Asks a causal language model about each pair, in both orders.

    Args:
        judge: its configuration.
        origin: where the model comes from, for people.
    """

    def __init__(
        self, letters: Letters, tokenizer: PreTrainedTokenizerBase, judge: LanguageModelJudge, *, origin: str, part: str
    ) -> None:
        self._letters = letters
        self._tokenizer = tokenizer
        self._judge = judge
        self._origin = origin
        self._part = part

    def choices(self, pairs: Sequence[tuple[int, Pair]]) -> list[tuple[Chosen, Chosen]]:
        """Return what the model chooses of each pair in both orders."""
        found = self._choices(
            [
                judge_question(pair.policy.conversation, *answers, criteria=self._judge.criteria)
                for _, pair in pairs
                for answers in pair.in_both_orders
            ]
        )
        return list(zip(found[::2], found[1::2], strict=True))

    def _choices(self, texts: Sequence[str]) -> list[Chosen]:
        """Return what the model chooses for each question."""
        questions = [[{"role": "user", "content": text}] for text in texts]
        ids: list[list[int]] = [
            self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, **thinking(False))[
                "input_ids"
            ]
            for turns in questions
        ]
        longest = self._letters.longest
        found = [Chosen(None, f"the question is longer than its {longest} positions")] * len(ids)
        places = [place for place, tokens in enumerate(ids) if len(tokens) <= longest]
        for place, chances in zip(places, self._letters.chances([ids[place] for place in places]), strict=True):
            found[place] = _choice(*chances)
        return found

    def shown(self) -> str:
        """Return who judges: the model, and the version of its question."""
        return f"the language model {self._origin}, question {judge_version(self._judge.criteria)}, both orders"

    def part_in_training(self) -> str:
        """Return what it had to do with the training."""
        return self._part

    def close(self) -> None:
        """End what computes the model."""
        self._letters.close()


class PlainLetters:
    """Computes the model with transformers, a padded batch at a time.

    Args:
        letters: ids of the tokens that are the first letter, and the second.
        pad_id: fills up; nothing depends on it.
    """

    def __init__(
        self, model: PreTrainedModel, letters: tuple[list[int], list[int]], *, pad_id: int, batch_size: int
    ) -> None:
        self._model = model.eval()
        self._letters = letters
        self._pad_id = pad_id
        self._batch_size = batch_size
        self.longest = position_limit(model)

    def chances(self, questions: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        """Return for each question the probability of each letter as the next token."""
        found = [(0.0, 0.0)] * len(questions)
        for batch in length_batches(list(map(len, questions)), max_items=self._batch_size):
            for place, chances in zip(batch, self._of_batch([questions[place] for place in batch]), strict=True):
                found[place] = chances
        return found

    @torch.inference_mode()
    def _of_batch(self, batch: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
        width, pad, device = max(map(len, batch)), self._pad_id, self._model.device
        rows = torch.tensor([[*tokens, *[pad] * (width - len(tokens))] for tokens in batch], device=device)
        mask = torch.tensor([[1] * len(tokens) + [0] * (width - len(tokens)) for tokens in batch], device=device)
        hidden = self._model.base_model(input_ids=rows, attention_mask=mask).last_hidden_state
        last = hidden[torch.arange(len(batch), device=device), mask.sum(dim=1) - 1]
        chances = self._model.get_output_embeddings()(last).float().softmax(dim=-1)
        first, second = (chances[:, ids].sum(dim=-1).tolist() for ids in self._letters)
        return list(zip(first, second, strict=True))

    def close(self) -> None:
        """Nothing to end."""


def letters_of(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the ids of the tokens that are the letter A, and B, with and without a space before."""
    found = []
    for letter in "AB":
        forms = (tokenizer(text, add_special_tokens=False).input_ids for text in (letter, f" {letter}"))
        found.append(sorted({ids[0] for ids in forms if len(ids) == 1}))
    if not all(found):
        raise BadConfigError("The judge's tokenizer has no token for the letter A or B alone; name another model.")
    return found[0], found[1]


def _choice(first: float, second: float) -> Chosen:
    both = first + second
    if both < _LEAST_ON_LETTERS:
        return Chosen(None, "it would write something else than A or B")
    if abs(first - second) <= _TIE * both:
        return Chosen("tie")
    return Chosen("first" if first > second else "second")


def start(context: StageContext, config: Rewarding, judge: LanguageModelJudge) -> StartedJudge:
    """Load the model, or start vLLM with it.

    Raises:
        MissingPrerequisiteError: the model is missing or damaged.
        BadConfigError: its tokenizer has no letters, or vLLM is missing or refuses it.
        StageError: vLLM does not start.
    """
    role = f"{JUDGE_INPUT}_{judge.name}"
    folder, item = context.input_path(role), context.input(role)
    tokenizer = load_tokenizer(folder, origin=item.origin)
    found: Letters
    if judge.engine == "vllm":
        from containers.judges.vllm_letters import start_letters  # heavy, and only where it is used

        found = start_letters(context, config, judge, folder, letters=letters_of(tokenizer))
    else:
        profile = context.spec.profile
        model = load_causal_model(folder, dtype=compute_dtype(profile), device=compute_device(profile))
        size, pad = rows_at_a_time(context, config), int(tokenizer.pad_token_id or 0)
        found = PlainLetters(model, letters_of(tokenizer), pad_id=pad, batch_size=size)
    return LanguageModel(found, tokenizer, judge, origin=item.origin or item.digest, part=_part(context, role))


def _part(context: StageContext, role: str) -> str:
    """Return whether the policy started from this very model."""
    same = any(item.name == "start_model" and item.digest == context.input(role).digest for item in context.spec.inputs)
    return "the policy started from it, so it may prefer what it would write itself" if same else ""
