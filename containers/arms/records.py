"""What compare_policies writes: by each judge, every arm against every other."""

from pydantic import Field

from containers.contracts.base import Frozen, Seed
from containers.contracts.outcome import Metric

# The name of the model from which all arms started, among the arms.
START = "start"
# The name of the rewards among the judges.
REWARDS = "rewards"


class ArmValue(Frozen):
    """What a judge that gives values says of an arm: the mean over prompts, seeds and completions."""

    arm: str
    value: Metric
    by_seed: tuple[tuple[Seed, float], ...] = ()


class ArmCell(Frozen):
    """One arm against another, by one judge."""

    arm: str
    other: str
    win_rate: Metric = Field(description="Share of pairs that `arm` wins; a tie counts half. Interval over prompts")
    num_wins: int = Field(ge=0, description="Pairs of completions with the same prompt, number and seed")
    num_ties: int = Field(ge=0)
    num_losses: int = Field(ge=0)
    by_seed: tuple[tuple[Seed, float], ...] = Field((), description="Win rate with each seed of the training")
    p_value: float = Field(ge=0, le=1, description="Exact sign test over prompts, two-sided")
    p_adjusted: float = Field(ge=0, le=1, description="By Holm's rule for the number of cells of all judges")

    @property
    def is_shown(self) -> bool:
        """Whether one arm is better: beyond chance over prompts, and with every seed of the training."""
        sides = {rate > 0.5 for _, rate in self.by_seed}
        return self.p_adjusted < 0.05 and len(sides) == 1 and all(rate != 0.5 for _, rate in self.by_seed)

    @property
    def better(self) -> str:
        """The arm that is shown to be better; empty: none is."""
        if not self.is_shown:
            return ""
        return self.arm if self.win_rate.value > 0.5 else self.other


class JudgedArms(Frozen):
    """What one judge says of all arms."""

    name: str
    type: str
    shown: str = Field(description="Who judges, for people")
    is_outcome: bool = Field(False, description="Whether it says right or wrong")
    trained: tuple[str, ...] = Field((), description="The arms in whose training it took part")
    cells: tuple[ArmCell, ...] = ()
    values: tuple[ArmValue, ...] = Field((), description="Of a judge that gives values")
    num_untold: int = Field(0, ge=0, description="Pairs about which it could not tell")
    problem: str = Field("", description="Why it is no judge here; empty: it is one")


class PolicyComparison(Frozen):
    """`policy_comparison.json`."""

    arms: tuple[str, ...] = Field(description="In the order of the file; `start` first, where it was compared")
    num_prompts: int = Field(ge=1)
    completions_per_prompt: int = Field(ge=1)
    judges: tuple[JudgedArms, ...] = Field((), description="In the order of the configuration; the rewards last")
