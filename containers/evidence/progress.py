"""What is known of a policy while it trains: which step is trusted, every look, and what a resumed training needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from containers.contracts.configs.parts.evidence import EvidenceSettings
from containers.contracts.evidence import Consequence, Evidence, EvidenceLook, EvidencePoint, MeterLimit
from containers.contracts.outcome import Metric
from containers.evidence.looks import Compared, Written
from containers.evidence.meters import Meters
from containers.evidence.trust import Trust, least_shown
from containers.formatting import percent
from containers.rollouts.generate import Completion

_TIMES = {1: "once", 2: "twice"}


@dataclass(frozen=True)
class OpenLook:
    """A look that is not decided yet; if its judge is one that no stage reaches, the checkpoint of its step has it.

    Attributes:
        limits: of the meters, if this step is trusted.
    """

    step: int
    is_due: bool
    is_last: bool
    written: Written
    limits: Mapping[str, MeterLimit]

    def state(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "step": self.step,
            "is_due": self.is_due,
            "is_last": self.is_last,
            "answers": _as_json(self.written.answers),
            "point": self.written.point and self.written.point.model_dump(mode="json"),
            "duration_s": self.written.duration_s,
            "limits": [limit.model_dump(mode="json") for limit in self.limits.values()],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "OpenLook":
        """Return it from its state."""
        point = state["point"] and EvidencePoint.model_validate(state["point"])
        limits = map(MeterLimit.model_validate, state["limits"])
        return cls(
            step=state["step"],
            is_due=state["is_due"],
            is_last=state["is_last"],
            written=Written(_from_json(state["answers"]), point, state["duration_s"]),
            limits={limit.name: limit for limit in limits},
        )


@dataclass
class Progress:
    """The state of the evidence; a checkpoint has it.

    Attributes:
        judge: name of the judge that decides; empty: there is none.
        inside: without a judge: the newest step that was due while every meter was inside its limits.
        answers: of the trusted policy, on the held-out prompts.
        open: a look that waits for its judge.
        ended_at: the step at which training was ended before its time.
    """

    settings: EvidenceSettings
    judge: str
    trust: Trust = field(init=False)
    meters: Meters = field(default_factory=Meters)
    inside: int = 0
    start: EvidencePoint | None = None
    agreement: Metric | None = None
    looks: list[EvidenceLook] = field(default_factory=list)
    answers: list[Completion] = field(default_factory=list)
    waiting: str = ""
    open: OpenLook | None = None
    ended_at: int | None = None
    ended_because: str = ""
    num_roll_backs: int = 0
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        self.trust = Trust(self.settings.patience)

    def take(self, compared: Compared, *, step: int, is_due: bool, is_last: bool) -> EvidenceLook:
        """Take in a look, and return it with what follows."""
        if is_due:
            self.waiting = ""
        against, found = self.trust.step, self.trust.take(step, compared.tally.shown, was_due=is_due)
        consequence: Consequence = "goes on" if found == "no gain" else found
        if found == "no gain" and not is_last and self.settings.on_no_gain != "note":
            rolls_back = self.settings.on_no_gain == "roll_back" and self.num_roll_backs < self.settings.max_roll_backs
            consequence = "rolls back" if rolls_back else "ends"
        tally = compared.tally
        look = EvidenceLook(
            **compared.point.model_dump(),
            because=self.waiting,
            against=against,
            num_wins=tally.wins,
            num_ties=tally.ties,
            num_losses=tally.losses,
            num_untold=tally.untold,
            shown=tally.shown,
            consequence=consequence,
            others=compared.others,
            duration_s=compared.duration_s,
        )
        self.looks.append(look)
        self.waiting = ""
        self.duration_s += compared.duration_s
        if consequence == "rolls back":
            self.num_roll_backs += 1
        if consequence == "ends":
            often = _in_a_row(self.settings.patience)
            saw = "that it is worse than" if look.shown == "worse" else f"no gain {often} over"
            self.end(step, f"{self.judge} saw {saw} {step_text(against)}")
        return look

    def end(self, step: int, because: str) -> None:
        """Note that training ends at this step."""
        self.ended_at, self.ended_because = step, because

    def published_step(self, last_step: int) -> int:
        """Return the step whose weights the stage publishes, after a training that ended at `last_step`."""
        if self.judge:
            return last_step if self.settings.on_no_gain == "note" else self.trust.step
        return last_step if self.ended_at is None else self.inside

    def record(self, *, last_step: int, shown: str, part: str, num_prompts: int) -> Evidence:
        """Return what `evidence.json` says."""
        return Evidence(
            judge=self.judge,
            judge_shown=shown,
            part_in_training=part,
            num_prompts=num_prompts,
            rank_agreement=self.agreement,
            start=self.start,
            least_shown=least_shown(num_pairs=self.settings.num_pairs) if self.judge else None,
            looks=tuple(self.looks),
            limits=tuple(self.meters.limits.values()),
            published_step=self.published_step(last_step),
            ended_because=self.ended_because,
            num_roll_backs=self.num_roll_backs,
            duration_s=self.duration_s,
        )

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs, as JSON values."""
        return {
            "trusted": self.trust.step,
            "missed": self.trust.missed,
            "meters": self.meters.state(),
            "inside": self.inside,
            "start": self.start and self.start.model_dump(mode="json"),
            "agreement": self.agreement and self.agreement.model_dump(mode="json"),
            "looks": [look.model_dump(mode="json") for look in self.looks],
            "answers": _as_json(self.answers),
            "open": self.open and self.open.state(),
            "waiting": self.waiting,
            "ended_at": self.ended_at,
            "ended_because": self.ended_because,
            "num_roll_backs": self.num_roll_backs,
            "duration_s": self.duration_s,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from that state."""
        self.trust.step, self.trust.missed = state["trusted"], state["missed"]
        self.meters.restore(state["meters"])
        self.start = state["start"] and EvidencePoint.model_validate(state["start"])
        self.agreement = state["agreement"] and Metric.model_validate(state["agreement"])
        self.looks = [EvidenceLook.model_validate(look) for look in state["looks"]]
        self.answers = _from_json(state["answers"])
        self.open = state["open"] and OpenLook.restored(state["open"])
        for name in ("inside", "waiting", "ended_at", "ended_because", "num_roll_backs", "duration_s"):
            setattr(self, name, state[name])


def _as_json(answers: Sequence[Completion]) -> list[list[Any]]:
    return [[list(one.prompt_ids), list(one.completion_ids), one.text, one.ended] for one in answers]


def _from_json(answers: Sequence[Sequence[Any]]) -> list[Completion]:
    return [Completion(tuple(prompt), tuple(tokens), text, ended) for prompt, tokens, text, ended in answers]


def step_text(step: int) -> str:
    """Return `the start model` or `step 40`."""
    return f"step {step:,}" if step else "the start model"


def look_text(look: EvidenceLook, *, judge: str) -> str:
    """Return what a look found and what follows, in a sentence or two."""
    rate = "" if look.win_rate is None else f" (win rate {percent(look.win_rate)})"
    counts = f"{look.num_wins:,} pairs won, {look.num_ties:,} tied, {look.num_losses:,} lost"
    found = f"by {judge}, {counts} against {step_text(look.against)}{rate}"
    early = f" It was looked at early, since {look.because}." if look.because else ""
    seen = "it is worse beyond chance" if look.shown == "worse" else "no gain is shown"
    follows = {
        "trusted": f"step {look.step:,} is trusted from here on",
        "goes on": f"{seen}, and training goes on",
        "ends": f"{seen}: training ends, and {step_text(look.against)} is published",
        "rolls back": f"{seen}: training goes on from {step_text(look.against)}, with twice the beta",
    }[look.consequence]
    return f"Look at step {look.step:,}: {found}; {follows}.{early}"


def _in_a_row(patience: int) -> str:
    if patience == 1:
        return "at a look"
    return f"{_TIMES.get(patience, f'{patience} times')} in a row"
