"""`evidence.json` of train_policy: whether the policy still got better while it trained, look by look."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.outcome import Metric
from containers.contracts.records import Message

# What a look shows of the policy, against the last trusted checkpoint.
Shown = Literal["better", "worse", "neither"]
# What follows: the step is trusted; training goes on without; training ends; it goes on from the trusted checkpoint.
Consequence = Literal["trusted", "goes on", "ends", "rolls back"]


class AskedPairs(Frozen):
    """`asked.json` beside pairs that a stage left for a judge that it cannot reach."""

    judge: str = Field(description="Its name in the configuration")
    num_pairs: int = Field(ge=1)


class EvidenceSample(Frozen):
    """One answer to a held-out prompt; each look shows the same prompts."""

    prompt: tuple[Message, ...]
    answer: str
    reward: float


class EvidencePoint(Frozen):
    """What the policy wrote on the held-out prompts at one step; step 0 is the start model."""

    step: int = Field(ge=0)
    reward: float = Field(description="Mean over the answers")
    length: float = Field(ge=0, description="Mean, tokens")
    kl: float | None = Field(None, description="Sampled, from the start model, nats a completion; null: no reference")
    samples: tuple[EvidenceSample, ...] = ()


class EvidenceLook(EvidencePoint):
    """One comparison of the policy with its last trusted checkpoint, on the same prompts."""

    because: str = Field("", description="Why it came before its turn; empty: it was due")
    against: int = Field(ge=0, description="Step of the trusted checkpoint; 0 is the start model")
    num_wins: int = Field(ge=0, description="Pairs whose better answer is the policy's")
    num_ties: int = Field(ge=0)
    num_losses: int = Field(ge=0)
    num_untold: int = Field(0, ge=0, description="Pairs about which the judge could not tell")
    shown: Shown
    consequence: Consequence
    others: tuple[tuple[str, float], ...] = Field((), description="Win rate by each further judge")
    duration_s: float = Field(ge=0)

    @property
    def num_pairs(self) -> int:
        """Pairs that were shown to the judge."""
        return self.num_wins + self.num_ties + self.num_losses + self.num_untold

    @property
    def win_rate(self) -> float | None:
        """Share of pairs that the policy wins; a tie counts half. None: the judge told nothing."""
        told = self.num_wins + self.num_ties + self.num_losses
        return (self.num_wins + self.num_ties / 2) / told if told else None


class MeterLimit(Frozen):
    """Where a meter was on answers of the trusted policy, and between which values it says nothing."""

    name: str
    start: float
    low: float | None = None
    high: float | None = None


class Evidence(Frozen):
    """`evidence.json`."""

    judge: str = Field("", description="Name of the judge that decided; empty: there was none, only meters")
    judge_shown: str = Field("", description="Who judged, for people")
    part_in_training: str = Field("", description="What the judge had to do with the training; empty: nothing")
    num_prompts: int = Field(0, ge=0, description="Held-out prompts")
    rank_agreement: Metric | None = Field(
        None, description="Spearman's, of reward and judge on the start model's answers; null: the judge has no values"
    )
    start: EvidencePoint | None = None
    least_shown: float | None = Field(
        None, description="True win rate that a look shows in four of five cases, where no pair is a tie"
    )
    looks: tuple[EvidenceLook, ...] = ()
    limits: tuple[MeterLimit, ...] = ()
    published_step: int = Field(ge=0, description="0: the start model, since no step was shown to be better")
    ended_because: str = Field("", description="Why training ended before its last planned step; empty: it did not")
    num_roll_backs: int = Field(0, ge=0)
    duration_s: float = Field(
        0, ge=0, description="Time of all that was written and judged for it, before a resume too"
    )
