"""The self-test of a machine: what its program is given, what it measures, and the record that `rlhf plan` reads."""

from typing import Any, Literal

from pydantic import Field

from containers.contracts.base import Frozen, Name
from containers.contracts.registries import RuntimeName

# Inputs of the program: the request, and weights of two trainings that are compared.
REQUEST_INPUT, RESUMED_INPUT, UNINTERRUPTED_INPUT = "request", "resumed", "uninterrupted"
# In its work folder, with a line for each probe that has ended.
MEASURED_PROBES_FILE = "probes.jsonl"

Verdict = Literal["passed", "failed", "not run"]


class Measurement(Frozen):
    """A figure with its unit; `of` says of which card, ranks or size."""

    name: str
    value: float
    unit: str
    of: str = ""


class Measured(Frozen):
    """What a probe measured in the stage's environment; the orchestrator judges it.

    Attributes:
        notes: sentences beside the figures.
        refused: why the probe does not apply here; empty: it does.
        error: why it broke off; empty: it did not.
    """

    probe: Name
    values: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""
    error: str = ""
    duration_s: float = Field(0.0, ge=0)

    def figures(self, name: str) -> tuple[Measurement, ...]:
        """The figures of that name."""
        return tuple(value for value in self.values if value.name == name)

    def one(self, name: str) -> float | None:
        """The figure of that name, if there is exactly one."""
        found = self.figures(name)
        return found[0].value if len(found) == 1 else None


class SelftestRequest(Frozen):
    """What the program shall measure.

    Attributes:
        probes: their names, in order.
        model: content of a config.json with the shape of the run's model; empty where it is not known.
        model_note: how that shape differs from the run's model; empty: it does not.
        cache_variables: names of variables with folders from which libraries load what they compiled.
        load_s: how long the load on all cards lasts.
    """

    probes: tuple[Name, ...] = Field(min_length=1)
    model: dict[str, Any] = Field(default_factory=dict)
    model_note: str = ""
    cache_variables: tuple[str, ...] = ()
    load_s: float = Field(60.0, gt=0, le=600)


class ProbeResult(Frozen):
    """A row of the table.

    Attributes:
        name: for people.
        passes: what passes.
        why: of a failure, or of a probe that was not run.
        advice: what to do about a failure; empty where none is needed.
    """

    probe: Name
    name: str
    verdict: Verdict
    passes: str
    values: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    why: str = ""
    advice: str = ""
    duration_s: float = Field(0.0, ge=0)


class MeasuredSpeed(Frozen):
    """Speeds of one card, for plans.

    Attributes:
        flops: of the run's packed training step, by the plan's count of operations.
        memory_bytes_per_s: read and written by a copy on the card.
        block_token_s: one generated token in one layer of a model without adapters; None: not measured.
        graph_token_s: one generated token in one layer by vLLM, reading of weights included; None: not measured.
    """

    flops: float = Field(gt=0)
    memory_bytes_per_s: float = Field(gt=0)
    block_token_s: float | None = Field(None, gt=0)
    graph_token_s: float | None = Field(None, gt=0)


class Selftest(Frozen):
    """The self-test of a machine, as it is kept and sent.

    Attributes:
        card: kind of the cards, as the driver names them; the processor on a profile without GPUs.
        model: shape that was measured, as text.
        speed: of one card; None where it was not measured.
    """

    version: Literal[1] = 1
    made_at: str
    host: str
    profile: str
    num_gpus: int = Field(ge=0)
    precision: str
    card: str
    driver: str = ""
    runtime: RuntimeName
    image_digest: str = ""
    sources: str
    packages: tuple[tuple[str, str], ...] = ()
    model: str = ""
    results: tuple[ProbeResult, ...]
    speed: MeasuredSpeed | None = None
    duration_s: float = Field(ge=0)

    @property
    def failed(self) -> tuple[ProbeResult, ...]:
        """The probes that failed."""
        return tuple(result for result in self.results if result.verdict == "failed")
