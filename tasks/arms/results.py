"""What became of each arm: read from the record of its run and from what it cost."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from containers.arms.page import ArmRun
from containers.contracts.names import POLICY_EVALUATION_FILE, StageName
from containers.contracts.records import PipelineRecord, PolicyEvaluation, StageRecord
from containers.contracts.spec import ArtifactRef
from tasks.arms.load import Arm
from tasks.pipeline.standing_report import last_record
from tasks.run.budget import gpu_hours, read_costs

_MADE = ("ran", "reused")


@dataclass(frozen=True)
class ArmResult:
    """One arm after its run.

    Attributes:
        record: of its run; None: it wrote none.
        problem: why it did not come to its end, in a sentence; empty: it did.
        waits: whether a person must decide something first.
        is_spent: whether the GPU hours were used up.
    """

    arm: Arm
    record: PipelineRecord | None
    problem: str = ""
    waits: bool = False
    is_spent: bool = False

    @property
    def completions(self) -> ArtifactRef | None:
        """What its policy wrote on the held-out prompts."""
        return self._made(StageName.SAMPLE_COMPLETIONS)

    @property
    def verdict(self) -> ArtifactRef | None:
        """What its judges said of it."""
        return self._made(StageName.EVALUATE_POLICY)

    @property
    def compares(self) -> bool:
        """Whether its policy was judged, so that it can be compared, gate or no gate."""
        return self.completions is not None and self.verdict is not None

    @property
    def keys(self) -> dict[StageName, str]:
        """Stage → the key of its result, for every stage that the run has a result of."""
        stages = () if self.record is None else self.record.stages
        return {stage.stage: stage.key for stage in stages if stage.key and stage.status in _MADE}

    def as_run(self, shared: Collection[tuple[StageName, str]]) -> ArmRun:
        """The arm for the page.

        Args:
            shared: stages and keys that other arms use too; their cost is not the arm's own.
        """
        gates = () if self.record is None else self.record.gates
        gate = next((gate for gate in gates if gate.name == "policy"), None)
        verdict = self.verdict
        evaluation = verdict and PolicyEvaluation.read_if_valid(Path(verdict.path) / POLICY_EVALUATION_FILE)
        return ArmRun(
            arm=self.arm.name,
            seed=self.arm.seed,
            outcome=self.problem or (f"policy gate {gate.outcome_text}" if gate else "not judged"),
            gate_opens=None if gate is None else gate.opens,
            evaluation=evaluation or None,
            report=self.arm.report if (self.arm.config.output_dir / "report.html").is_file() else "",
            gpu_hours=gpu_hours(
                cost
                for cost in read_costs(self.arm.config.output_dir.resolve())
                if (cost.stage, cost.key) not in shared
            ),
        )

    def _made(self, stage: StageName) -> ArtifactRef | None:
        record = self._record_of(stage)
        if record is None or record.status not in _MADE:
            return None
        return ArtifactRef(stage=stage, key=record.key, path=record.path, digest=record.digest)

    def _record_of(self, stage: StageName) -> StageRecord | None:
        stages = () if self.record is None else self.record.stages
        return next((record for record in stages if record.stage is stage), None)


def newest_record(arm: Arm, *, before: PipelineRecord | None) -> PipelineRecord | None:
    """The record that the arm's run just wrote; None if it is still the one from before."""
    record = last_record(arm.config.output_dir)
    return None if record is None or (before is not None and record.run_id == before.run_id) else record


def failed_key(record: PipelineRecord | None) -> tuple[StageName, str] | None:
    """The stage that failed in that run, with its key; None if none did."""
    stages = () if record is None else record.stages
    return next(((stage.stage, stage.key) for stage in stages if stage.status == "failed" and stage.key), None)
