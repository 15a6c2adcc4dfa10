"""The losses on pairs as tables of parts: what each paper says, and which parts cannot be combined.

`containers.losses.preferences` has the objectives behind the names.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from containers.contracts.base import Frozen, Positive, Weight

PreferenceObjective = Literal["sigmoid", "robust", "hinge", "ipo", "kto", "orpo", "sft"]
Smoothing = Annotated[float, Field(ge=0, lt=1)]
_SMOOTHED = ("sigmoid", "robust")


class PreferenceLoss(Frozen):
    """The parts of one loss on pairs."""

    objective: PreferenceObjective
    has_reference: bool = Field(description="Log-probabilities are taken relative to the start model's")
    length_normalised: bool = Field(description="A completion's log-probability is its mean over tokens, not its sum")
    beta: Positive
    simpo_gamma: Weight
    label_smoothing: Smoothing
    sft_weight: Weight


_DPO = PreferenceLoss(
    objective="sigmoid",
    has_reference=True,
    length_normalised=False,
    beta=0.1,
    simpo_gamma=0.0,
    label_smoothing=0.0,
    sft_weight=0.0,
)
# Loss → its parts, each as its paper has them.
PREFERENCE_LOSSES: Mapping[str, PreferenceLoss] = {
    # Rafailov et al. 2023 (DPO), arXiv:2305.18290; with label smoothing Mitchell's conservative DPO.
    "sigmoid": _DPO,
    # Chowdhury et al. 2024, arXiv:2403.00409: unbiased where a share of the pairs is the wrong way round.
    "robust": _DPO.model_copy(update={"objective": "robust", "label_smoothing": 0.1}),
    # Zhao et al. 2023 (SLiC), arXiv:2305.10425, normalised by the reference as in Liu et al. 2023, arXiv:2309.06657.
    "hinge": _DPO.model_copy(update={"objective": "hinge"}),
    # Azar et al. 2023, arXiv:2310.12036; per token, as its authors compute it.
    "ipo": _DPO.model_copy(update={"objective": "ipo", "length_normalised": True}),
    # Meng et al. 2024, arXiv:2405.14734: no reference; gamma is half of beta.
    "simpo": _DPO.model_copy(
        update={"has_reference": False, "length_normalised": True, "beta": 2.0, "simpo_gamma": 1.0}
    ),
    # Ethayarajh et al. 2024, arXiv:2402.01306.
    "kto": _DPO.model_copy(update={"objective": "kto"}),
    # Hong et al. 2024, arXiv:2403.07691: beta weighs the odds ratio beside the likelihood of the chosen completion.
    "orpo": _DPO.model_copy(
        update={"objective": "orpo", "has_reference": False, "length_normalised": True, "sft_weight": 1.0}
    ),
    # Preferred-FT of Rafailov et al. 2023, section 6: the chosen completions alone are learnt, and nothing is compared.
    "sft": _DPO.model_copy(update={"objective": "sft", "has_reference": False, "sft_weight": 1.0}),
}


def contradictions(parts: PreferenceLoss) -> Iterator[tuple[str, str]]:
    """Yield for each combination that makes no sense: its key in train_dpo, and a sentence."""
    objective = parts.objective
    if parts.label_smoothing and objective not in _SMOOTHED:
        yield (
            "label_smoothing",
            f"{parts.label_smoothing:g} has no effect on {objective}, which has no term for a pair the wrong way "
            "round. Leave it out, or use the loss sigmoid or robust.",
        )
    if parts.label_smoothing >= 0.5:
        yield (
            "label_smoothing",
            f"{parts.label_smoothing:g} says that pairs are as often wrong as right, so that nothing can be learnt "
            "from them. Use less than 0.5.",
        )
    if objective == "robust" and not parts.label_smoothing:
        yield (
            "label_smoothing",
            "is 0, with which robust is the loss sigmoid. Use that, or give the share of wrong pairs.",
        )
    if parts.simpo_gamma and objective != "sigmoid":
        yield (
            "simpo_gamma",
            f"{parts.simpo_gamma:g} has no effect on {objective}: it is the margin of simpo and sigmoid. Leave it out.",
        )
    if objective == "kto" and parts.length_normalised:
        yield (
            "length_normalised",
            "makes no sense with kto: its baseline is the KL of whole completions. Leave it out.",
        )
    if objective == "orpo" and not parts.length_normalised:
        yield (
            "length_normalised",
            "false makes no sense with orpo: the odds of a whole completion are its probability, which is nearly 0. "
            "Leave it out.",
        )
    if objective == "sft" and parts.length_normalised:
        yield "length_normalised", "has no effect on sft, which compares nothing. Leave it out."
    if objective == "sft" and not parts.sft_weight:
        yield "sft_weight", "is 0, and sft has no other loss: nothing would be learnt. Leave it out for 1."
    if objective == "orpo" and not parts.sft_weight:
        yield (
            "sft_weight",
            "is 0, and orpo has no reference: nothing would keep the chosen completions likely. Leave it out for 1.",
        )


if TYPE_CHECKING:
    PreferenceLossName = str
else:
    PreferenceLossName = Literal[tuple(PREFERENCE_LOSSES)]
