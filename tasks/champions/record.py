"""The record of one model's champions: versions, the data that they are compared on, every decision. Pure."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.champions import Comparison, DecisionKind
from containers.contracts.manifest import LineageEntry
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.records import GateVerdict
from containers.formatting import one_line, short_digest
from tasks.store.history import StageMemory

Kind = Literal["reward_model", "policy"]

_SHOWN_KEY = 12


class StoredArtifact(Frozen):
    """An artifact by its name in the store, independent of the store's path."""

    stage: StageName
    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    digest: str

    @property
    def shown(self) -> str:
        """Stage and the first digits of the key."""
        return f"{self.stage} {self.key[:_SHOWN_KEY]}"


class RequestedStage(Frozen):
    """A stage as the challenger's run requested it, and its result: the same again needs no new decision."""

    memory: StageMemory
    digest: str


class ModelVersion(Frozen):
    """A model that was trained and judged; it may have become champion."""

    number: int = Field(ge=1)
    model: StoredArtifact
    certificate: StoredArtifact = Field(description="Its evaluation, on which the gate decided")
    pairs: StoredArtifact = Field(description="Output of filter_dataset; the model was trained on it")
    dataset: tuple[LineageEntry, ...] = Field(description="The data files that filter_dataset read")
    reward_model: str = Field(
        "", description="Of a policy: the champion that judged it, and that it was trained against unless on pairs"
    )
    gate: GateVerdict
    figures: tuple[Metric, ...] = Field((), description="Of the certificate")
    run_name: str
    run_id: str
    mlflow_run_id: str = ""
    flow_run: str = Field("", description="Address of the Prefect flow run")
    made_at: str = Field(description="UTC, ISO 8601")

    @property
    def shown(self) -> str:
        """Its name for users."""
        return f"version {self.number}"

    @property
    def dataset_text(self) -> str:
        """Origins of its data, each with the first digits of its digest."""
        return "; ".join(f"{one_line(item.origin, 200)} ({short_digest(item.digest)})" for item in self.dataset)


class FrozenSet(Frozen):
    """The held-out data that all champions and challengers are compared on; never replaced, never added to."""

    file: str = Field(description="Below the folder of the champions of this model")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    count: int = Field(ge=1, description="Pairs, or prompts of a policy")
    from_version: int = Field(ge=1, description="Whose data it comes from")
    was_chosen_on: bool = Field(False, description="These pairs also chose that version's checkpoint")
    was_certified_on: bool = Field(False, description="That version's certificate is of these pairs, too")


class Decision(Frozen):
    """What was decided, on which figures, and by whom. The history of decisions only grows."""

    at: str = Field(description="UTC, ISO 8601")
    kind: DecisionKind
    version: int | None = Field(None, description="The version decided on; null: a challenger that was refused")
    champion_before: int | None = None
    champion_after: int | None = None
    text: str = Field(description="Why, with figures")
    by: str = Field("", description="The person, if one did it by hand")
    comparison: Comparison | None = None
    asked: dict[StageName, RequestedStage] = Field({}, description="What the challenger was made of")
    rules: str = Field("", description="Gates and demands that it was judged by, as JSON")
    run_id: str = ""
    mlflow_run_id: str = ""
    flow_run: str = ""

    @property
    def is_by_hand(self) -> bool:
        """Whether a person moved the champion."""
        return self.kind in ("promoted", "rolled_back")


class ChampionRecord(Frozen):
    """Everything that is known of the champions of one model. `champions/<name>.json` in the store."""

    name: str
    kind: Kind
    frozen: FrozenSet | None = None
    versions: tuple[ModelVersion, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @property
    def champions(self) -> tuple[int, ...]:
        """The champions in order of time, without those that were rolled back; the last one is champion now."""
        line: list[int] = []
        for decision in self.decisions:
            after = decision.champion_after
            if decision.kind == "rolled_back":
                line = line[:-1]
            elif after is not None and after != (line[-1] if line else None):
                line.append(after)
        return tuple(line)

    @property
    def champion(self) -> ModelVersion | None:
        """The version that is champion now."""
        line = self.champions
        return self.version(line[-1]) if line else None

    @property
    def before(self) -> ModelVersion | None:
        """The version that a rollback would restore."""
        line = self.champions
        return self.version(line[-2]) if len(line) > 1 else None

    @property
    def last_asked(self) -> Decision | None:
        """The last decision about a challenger of a retraining."""
        return next((item for item in reversed(self.decisions) if item.asked), None)

    def version(self, number: int) -> ModelVersion | None:
        """The version of that number."""
        return next((item for item in self.versions if item.number == number), None)

    def version_of(self, model: StoredArtifact) -> ModelVersion | None:
        """The version with the digest of this model."""
        return next((item for item in self.versions if item.model.digest == model.digest), None)

    def last_word_on(self, number: int) -> Decision | None:
        """The last decision about that version."""
        return next((item for item in reversed(self.decisions) if item.version == number), None)
