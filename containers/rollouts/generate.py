"""Batched generation of completions, and their log-probabilities under a policy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from containers.distributed.spread import Spread
from containers.harness.errors import DivergedError
from containers.models.over_gpus import Writer
from containers.models.trial import evaluating
from containers.scoring.batches import length_batches
from containers.token_budgets import LOGITS_BYTES

OnBatch: TypeAlias = Callable[[int], None]
# Bytes of a logit in float32 and in what is computed of it.
_FLOAT_COPIES = 10
# Error texts of sampling from logits that are not finite, on a CPU and on a GPU.
_SAMPLING_ERRORS = ("probability tensor contains", "device-side assert")


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a prompt.

    `completion_ids` includes the token that ended it; `text` is without special tokens. `ended` is true if the model
    wrote an ending token, and false if the completion was cut off.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    text: str
    ended: bool


def turn_end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return ids of the tokens that end a completion: the tokenizer's, and those of the model's generation config.

    This is the rule of TRL's RLOOTrainer, so that training and evaluation stop at the same tokens.
    """
    of_model = model.generation_config.eos_token_id
    listed = [of_model] if isinstance(of_model, int) else list(of_model or ())
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *listed]))


@contextmanager
def whole_distribution(model: PreTrainedModel) -> Iterator[None]:
    """Make `generate` use only token ids of the model's own generation config while this is open.

    transformers takes settings that a caller leaves out (penalties, min-p, forbidden and forced tokens, beams) from the
    config in the model's files. Sampling would then use another distribution than the log-probabilities. The own config
    is restored afterwards, and is saved with the model.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    try:
        yield
    finally:
        model.generation_config = own


def generate_completions(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float,
    batch_size: int,
    seed: int,
    on_batch: OnBatch | None = None,
    spread: Spread[Writer] | None = None,
) -> list[Completion]:
    """Generate one completion per prompt, in the order of the prompts.

    The same seed, prompts and batch size give the same completions. Two models sample with the same random numbers:
    equal models write equal completions. Sampling is from the whole distribution (no top-p, top-k or penalty, whatever
    the model's generation config says). The global random state does not change.

    Args:
        prompts: token ids of each prompt, not padded, at least one each.
        max_new_tokens: number of tokens after which a completion is cut off.
        temperature: 0 is greedy.
        batch_size: prompts per forward.
        on_batch: called with the number of completions so far.
        spread: programs on further GPUs with the same model, by `load_writer`.
    """
    places = list(length_batches([len(ids) for ids in prompts], max_items=batch_size))
    batches = [
        Asked([list(prompts[place]) for place in own], max_new_tokens, temperature, seed + number, own, base=seed)
        for number, own in enumerate(places)
    ]
    sizes = [sum(map(len, batch.prompts)) + len(batch.prompts) * max_new_tokens for batch in batches]
    written = _of_batches((model, tokenizer), _write, batches, places, sizes=sizes, spread=spread, on_batch=on_batch)
    return [written[place] for place in range(len(prompts))]


@dataclass(frozen=True)
class Asked:
    """A batch of prompts, with how it is answered.

    Attributes:
        seed: of the batch.
        places: of its prompts among all, by which a completion may have a seed that no batch changes.
        base: seed of all batches.
    """

    prompts: list[list[int]]
    max_new_tokens: int
    temperature: float
    seed: int
    places: Sequence[int]
    base: int


@runtime_checkable
class WritesItself(Protocol):
    """A model in a program of its own, which writes without transformers' `generate`."""

    def tails(self, batches: Sequence[Asked], *, end_ids: Sequence[int]) -> list[list[list[int]]]:
        """Return the tokens of a completion of each prompt of each batch."""


def _of_batches(
    writer: Writer,
    work: Callable[[Writer, list[Any]], list[Any]],
    batches: Sequence[Any],
    places: Sequence[Sequence[int]],
    *,
    sizes: Sequence[int],
    spread: Spread[Writer] | None,
    on_batch: OnBatch | None,
) -> dict[int, Any]:
    """Return what each batch gives, by the places of its members."""
    found: dict[int, Any] = {}
    if spread is not None:
        counts = sum(map(len, places)) / max(len(places), 1)
        told = on_batch or (lambda count: None)
        answers = spread.map(writer, work, batches, sizes=sizes, on_done=lambda done: told(round(done * counts)))
        for own, values in zip(places, answers, strict=True):
            found.update(zip(own, values, strict=True))
        return found
    for own, batch in zip(places, batches, strict=True):
        found.update(zip(own, work(writer, [batch])[0], strict=True))
        if on_batch is not None:
            on_batch(len(found))
    return found


def _write(writer: Writer, batches: Sequence[Asked]) -> list[list[Completion]]:
    """Return the completions of each batch."""
    model, tokenizer = writer
    end_ids, pad_id = turn_end_ids(model, tokenizer), int(tokenizer.pad_token_id)
    if isinstance(model, WritesItself):
        return [
            [
                _completion(prompt, tail, tokenizer, end_ids=end_ids)
                for prompt, tail in zip(batch.prompts, tails, strict=True)
            ]
            for batch, tails in zip(batches, model.tails(batches, end_ids=end_ids), strict=True)
        ]
    devices, found = ([model.device] if model.device.type == "cuda" else []), []
    for batch in batches:
        sampling = {"temperature": batch.temperature, "top_k": 0, "top_p": 1.0} if batch.temperature else {}
        settings = GenerationConfig(
            max_new_tokens=batch.max_new_tokens,
            eos_token_id=list(end_ids),
            pad_token_id=pad_id,
            do_sample=batch.temperature > 0,
            **sampling,
        )
        with evaluating(model), torch.random.fork_rng(devices=devices), whole_distribution(model):
            torch.manual_seed(batch.seed)
            input_ids, mask = padded_rows(batch.prompts, pad_id, side="left", device=model.device)
            sequences = model.generate(input_ids=input_ids, attention_mask=mask, generation_config=settings)
        tails = sequences[:, input_ids.shape[1] :].tolist()
        found.append(
            [
                _completion(prompt, tail, tokenizer, end_ids=end_ids)
                for prompt, tail in zip(batch.prompts, tails, strict=True)
            ]
        )
    return found


def sampled_completions(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, temperature: float
) -> list[Completion]:
    """Sample one completion per row, all rows at once, with the global random state; for training.

    Args:
        model: a causal model; its `generate` may be an engine's.
        prompts: token ids of each row's prompt; equal ones are adjacent.

    Raises:
        DivergedError: the logits are not finite.
    """
    end_ids, pad_id = turn_end_ids(model, tokenizer), int(tokenizer.pad_token_id)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=list(end_ids),
        pad_token_id=pad_id,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        disable_compile=True,
    )
    input_ids, mask = padded_rows(prompts, pad_id, side="left", device=model.device)
    try:
        with evaluating(model), whole_distribution(model):
            sequences = model.generate(input_ids=input_ids, attention_mask=mask, generation_config=settings)
    except RuntimeError as error:
        if not any(text in str(error) for text in _SAMPLING_ERRORS):
            raise
        raise DivergedError("the policy's logits are not finite, so nothing can be sampled from them") from error
    tails = sequences[:, input_ids.shape[1] :].tolist()
    return [_completion(prompt, tail, tokenizer, end_ids=end_ids) for prompt, tail in zip(prompts, tails, strict=True)]


def completion_logprobs(
    model: Any,
    completions: Sequence[Completion],
    *,
    pad_id: int,
    batch_size: int,
    temperature: float = 1.0,
    on_batch: OnBatch | None = None,
    spread: Spread[Writer] | None = None,
) -> list[float]:
    """Return the log-probability (nats) of each whole completion given its prompt, including the ending token.

    Args:
        pad_id: pads a batch; its positions are masked and do not count.
        temperature: above 0; divides the logits, so that the probabilities are those used for sampling.
        on_batch: called with the number of completions so far.
        spread: programs on further GPUs with the same model, by `load_writer`.

    Example: two tokens of probability 0.5 and 0.25 give ln 0.125 = -2.079.
    """
    lengths = [len(item.prompt_ids) + len(item.completion_ids) for item in completions]
    places = list(length_batches(lengths, max_items=batch_size))
    batches = [([completions[place] for place in own], pad_id, temperature) for own in places]
    sizes = [sum(lengths[place] for place in own) for own in places]
    found = _of_batches((model, None), _read, batches, places, sizes=sizes, spread=spread, on_batch=on_batch)
    return [found[place] for place in range(len(completions))]


def _read(writer: Writer, batches: Sequence[tuple[list[Completion], int, float]]) -> list[list[float]]:
    """Return the log-probabilities of the completions of each batch."""
    model, found = writer[0], []
    with evaluating(model):
        for batch, pad_id, temperature in batches:
            rows = _rows_of_logits(model, batch)
            parts = (batch[start : start + rows] for start in range(0, len(batch), rows))
            found.append([value for part in parts for value in _batch_logprobs(model, part, pad_id, temperature)])
    return found


def _rows_of_logits(model: Any, batch: Sequence[Completion]) -> int:
    """Return how many of the completions are read at a time, so that their logits take LOGITS_BYTES at most."""
    longest = max(len(one.prompt_ids) + len(one.completion_ids) for one in batch)
    one_row = longest * model.config.get_text_config().vocab_size * model.dtype.itemsize
    return max(1, int(LOGITS_BYTES // one_row))


def _batch_logprobs(model: Any, batch: Sequence[Completion], pad_id: int, temperature: float) -> list[float]:
    """Return the sum of token log-probabilities per completion, from one right-padded forward.

    Logits [B, L, V] are kept only from the start of the first completion, and are normalised row by row: with a
    vocabulary of 152k they are the largest tensor by far.
    """
    input_ids, mask = padded_rows(
        [[*item.prompt_ids, *item.completion_ids] for item in batch], pad_id, side="right", device=model.device
    )
    width = input_ids.shape[1]
    keep = width - min(len(item.prompt_ids) for item in batch) + 1
    logits = model(input_ids=input_ids, attention_mask=mask, logits_to_keep=keep, use_cache=False).logits
    totals = []
    for row, item in enumerate(batch):
        # The logits at position t predict token t + 1; position `width - keep` is the first one kept.
        start = len(item.prompt_ids) - 1 - (width - keep)
        own = logits[row, start : start + len(item.completion_ids)]
        tokens = torch.tensor(item.completion_ids, device=own.device)
        # In float32 a few positions at a time: logsumexp makes another copy.
        positions = max(1, LOGITS_BYTES // (_FLOAT_COPIES * own.shape[1]))
        total = 0.0
        for at in range(0, len(tokens), positions):
            part = own[at : at + positions].float() / temperature
            total += float(_logps(part, tokens[at : at + positions]).sum())
        totals.append(total)
    return totals


def _logps(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability [T] of each token by its row of the logits [T, V]."""
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=1)


def _completion(prompt: Sequence[int], tail: list[int], tokenizer: Any, *, end_ids: tuple[int, ...]) -> Completion:
    """Return the completion up to its first ending token."""
    end = next((position for position, token in enumerate(tail) if token in end_ids), None)
    ids = tail if end is None else tail[: end + 1]
    return Completion(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(ids),
        text=tokenizer.decode(ids, skip_special_tokens=True),
        ended=end is not None,
    )


def padded_rows(
    sequences: Sequence[Sequence[int]], pad_id: int, *, side: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return token ids [B, L] and attention mask [B, L], padded on one side to the longest."""
    width = max(len(ids) for ids in sequences)
    rows, masks = [], []
    for ids in sequences:
        missing = width - len(ids)
        left, right = (missing, 0) if side == "left" else (0, missing)
        rows.append([pad_id] * left + list(ids) + [pad_id] * right)
        masks.append([0] * left + [1] * len(ids) + [0] * right)
    return torch.tensor(rows, device=device), torch.tensor(masks, device=device)
