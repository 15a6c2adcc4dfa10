"""Trial of a rollout engine on the shortest and the longest prompt, compared with generate, before it is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from containers.models.trial import evaluating
from containers.rollouts.generate import padded_rows, whole_distribution
from containers.scoring.rounding import allowed_difference, num_layers_of

# Completions of each of the two prompts, and their number of tokens.
_SIBLINGS, _NEW_TOKENS = 2, 4
_PAD = 0


@dataclass(frozen=True)
class TrialRows:
    """The rows of a trial: two prompts, twice each, for greedy completions.

    Attributes:
        input_ids: [4, L], padded on the left.
        attention_mask: [4, L].
        settings: greedy, a few tokens, logits returned.
    """

    model: PreTrainedModel
    input_ids: Tensor
    attention_mask: Tensor
    settings: GenerationConfig

    @classmethod
    def of(cls, model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, max_length: int) -> "TrialRows":
        """Take the shortest and the longest of the prompts (token ids).

        Args:
            max_length: maximum tokens of a prompt with its completion.
        """
        rows = [prompt for prompt in (min(prompts, key=len), max(prompts, key=len)) for _ in range(_SIBLINGS)]
        input_ids, attention_mask = padded_rows(rows, _PAD, side="left", device=model.device)
        return cls(
            model=model,
            input_ids=input_ids,
            attention_mask=attention_mask,
            settings=GenerationConfig(
                max_new_tokens=max(1, min(_NEW_TOKENS, max_length - input_ids.shape[1])),
                do_sample=False,
                pad_token_id=_PAD,
                return_dict_in_generate=True,
                output_logits=True,
                disable_compile=True,
            ),
        )

    @property
    def width(self) -> int:
        """Number of a row's tokens before its completion, including padding."""
        return self.input_ids.shape[1]

    @property
    def prompts(self) -> list[list[int]]:
        """Token ids of the four rows, without padding."""
        return [ids[mask.bool()].tolist() for ids, mask in zip(self.input_ids, self.attention_mask, strict=True)]

    def answered(self) -> Any:
        """Return `generate`'s `sequences` [4, L + C] and `logits` (C times [4, V]); the model keeps its mode."""
        with evaluating(self.model), whole_distribution(self.model):
            return self.model.generate(
                input_ids=self.input_ids, attention_mask=self.attention_mask, generation_config=self.settings
            )

    def why_others(self, tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> str:
        """Return why these are not the greedy completions of the four rows, as a clause; empty if they are.

        Args:
            tokens: token ids of each completion.
            logprobs: log-probability of each token (nats).
        """
        plain = self.answered()
        written = plain.sequences[:, self.width :].tolist()
        for row, (own, own_logprobs) in enumerate(zip(tokens, logprobs, strict=True)):
            for step, (token, logprob) in enumerate(zip(own, own_logprobs, strict=True)):
                logits = plain.logits[step][row].float()
                bound = allowed_logit_difference(self.model, largest=float(logits.abs().max()))
                wanted = float(torch.log_softmax(logits, dim=-1)[token])
                # If two tokens are equally likely, rounding chooses, and another text may follow.
                if not abs(wanted - logprob) <= bound:
                    return (
                        f"log-probabilities are {abs(wanted - logprob):.2g} apart from those of "
                        f"{type(self.model).__name__}'s own generate, more than {bound:.2g}"
                    )
                likeliest = float(torch.log_softmax(logits, dim=-1).max())
                if likeliest - wanted > bound:
                    return f"it writes token {token}, although another is {likeliest - wanted:.2g} nats likelier"
                if token != written[row][step]:
                    break
        return ""


def allowed_logit_difference(model: PreTrainedModel, *, largest: float) -> float:
    """Return the allowed difference of logits: as for scores, but scaled, because large logits round more coarsely."""
    bound = allowed_difference(model.dtype, [largest], num_layers=num_layers_of(model))
    return bound * max(1.0, largest) if model.dtype == torch.float32 else bound
