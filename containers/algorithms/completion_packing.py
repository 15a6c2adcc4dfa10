"""Whether completions can be packed for a model: it is tried on its own prompts before it is trained."""

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from containers.models.trial import evaluating, trial
from containers.packing import scoring as packed_scoring
from containers.packing.attention import NAME, packed
from containers.packing.logps import completion_packs, packed_logps, row_logps
from containers.packing_traits import CompletionConfig, longest_conversation, packing_traits, why_completions_are_padded
from containers.scoring.rounding import allowed_difference, num_layers_of
from containers.token_budgets import CPU_PACK_TOKENS

# Enough for a packed row with neighbours. The longest prompt is one of them: short ones may fit into a sliding window.
_ASKED_PROMPTS = 3
# Tokens of the made-up completions for this test.
_ASKED_LENGTHS = (7, 4)


def why_padded(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    config: CompletionConfig,
) -> str:
    """Return why completions of these prompts cannot be packed for this causal model, as a clause; empty if they can.

    Computes completions of the longest prompt and the two shortest, packed and as single rows. Models whose attention
    does more than mask and weigh, or whose logits are scaled or capped, give other log-probabilities.
    """
    if reason := why_completions_are_padded(config, packing_traits(model.config.get_text_config().to_dict())):
        return reason
    longest = longest_conversation(config)
    if reason := packed_scoring.why_padded(model, max_length=longest):
        return reason
    asked, completions = _made_up(prompts, max_length=max(longest - max(map(len, prompts)), 1))
    with evaluating(model):
        plain = [row_logps(model, *row) for row in zip(asked, completions, strict=True)]
        with trial() as tried:
            found = _packed_logps(model, asked, completions)
    if tried.failure:
        return f"{type(model).__name__} fails with {NAME}: {tried.failure}"
    difference = max(float((one - other).abs().max()) for one, other in zip(found, plain, strict=True))
    values = [value for row in plain for value in row.tolist()]
    bound = allowed_difference(model.dtype, values, num_layers=num_layers_of(model))
    if not difference <= bound:
        name = type(model).__name__
        return f"log-probabilities of {name} are {difference:.2g} apart from padded rows, more than {bound:.2g}"
    return ""


def _made_up(prompts: Sequence[Sequence[int]], *, max_length: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts, one per completion, and completions made of their prompt's tokens."""
    ordered = sorted(prompts, key=len)
    chosen = [*ordered[: _ASKED_PROMPTS - 1], ordered[-1]]
    asked = [list(prompt) for prompt in chosen for _ in _ASKED_LENGTHS]
    lengths = [min(length, max_length) for _ in chosen for length in _ASKED_LENGTHS]
    made = [
        [prompt[(place * length) % len(prompt)] for place in range(length)]
        for prompt, length in zip(asked, lengths, strict=True)
    ]
    return asked, made


def _packed_logps(model: PreTrainedModel, prompts: list[list[int]], completions: list[list[int]]) -> list[Tensor]:
    """Return [C] log-probabilities of each completion, in order."""
    found: dict[int, Tensor] = {}
    with packed(model):
        for pack in completion_packs(prompts, completions, max_tokens=CPU_PACK_TOKENS):
            logps, _entropies = packed_logps(model, pack, temperature=1.0)
            found |= dict(zip(pack.rows, pack.by_completion(logps), strict=True))
    return [found[row] for row in range(len(prompts))]
