"""Tables that stages write as JSON into their output, for the report and MLflow."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.spec import ArtifactRef

# Scores that differ by less count as equal: float32 scores of equal weights and texts agree within this bound.
SCORE_TOLERANCE = 1e-4

Winner = Literal["policy", "reference", "tie"]


class Message(Frozen):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class TrainingInfo(Frozen):
    """`training_info.json` of every training stage."""

    stage: StageName
    algorithm: str
    num_steps: int = Field(ge=1)
    planned_steps: int = Field(ge=1)
    num_examples: int = Field(ge=0)
    examples_left_out: int = Field(0, ge=0, description="Longer than max_length")
    examples_without_row: int = Field(0, ge=0, description="With a token without row in the model's embedding")
    global_batch_size: int = Field(ge=1)
    trainable_parameters: int = Field(ge=0)
    total_parameters: int = Field(ge=1)
    best_step: int | None = None
    best_metric_name: str = ""
    best_metric: float | None = None
    num_evaluated: int | None = Field(
        None, ge=1, description="Validation examples of the evaluations that chose the best step; null: all of them"
    )
    resumed_from_step: int | None = None
    published_step: int | None = Field(None, description="Whose weights these are; null: those of the last step")
    ended_because: str = Field("", description="Why it ended before its last planned step; empty: it did not")
    duration_s: float = Field(ge=0)
    peak_memory_bytes: int | None = Field(None, ge=0, description="Peak GPU memory; on CPU, peak resident memory")
    device: str = ""
    precision: str = ""
    versions: tuple[tuple[str, str], ...] = ()


class SamplePrediction(Frozen):
    """A pair and its two scores."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    score_chosen: float
    score_rejected: float
    domain: str = ""


class Histogram(Frozen):
    """`edges` has one entry more than `counts`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class SideBySide(Frozen):
    """One held-out prompt answered by both policies."""

    prompt: tuple[Message, ...]
    policy: str
    reference: str
    reward_policy: float
    reward_reference: float
    winner: Winner = Field(description="By the rewards. A tie: the same text, or scores within SCORE_TOLERANCE")
    judged: tuple[tuple[str, Winner | None], ...] = Field(
        (), description="By each judge, by its name; null: it could not tell"
    )


class ComparedTerm(Frozen):
    """One reward of several: its mean value, unweighted, over the completions of policy and of reference."""

    name: str
    is_outcome: bool = Field(description="Whether it says right or wrong, so that its mean is the share of right ones")
    policy: Metric
    reference: Metric
    difference: Metric = Field(description="Paired by prompt")
    num_unscorable: int = Field(0, ge=0, description="Completions that it could not tell about; they count as 0")
    only_measures: bool = Field(
        False, description="Whether it trained nothing: with `combine: own`, reward models beside the run's own"
    )


class PeopleFigures(Frozen):
    """Who judged, of a judge that is people."""

    judged: tuple[tuple[str, int], ...] = Field(description="Pairs that each person judged, by name")
    num_shared: int = Field(ge=0, description="Pairs that two or more judged")
    agreement: float | None = Field(None, description="Of two people on the same pair: share that said the same")
    alpha: float | None = Field(None, description="Krippendorff's: 1 is agreement, 0 what chance gives")


class JudgeFigures(Frozen):
    """What one judge says of policy and reference, and what it had to do with the training."""

    name: str
    type: str
    shown: str = Field(description="Who judges, for people")
    part_in_training: str = Field("", description="What it had to do with the training; empty: nothing that is known")
    num_pairs: int = Field(ge=1)
    num_prompts: int = Field(ge=0, description="Prompts about which it told something")
    untold: tuple[tuple[str, int], ...] = Field((), description="Pairs about which it could not tell, by reason")
    num_wins: int = Field(ge=0, description="Pairs whose better completion is the policy's")
    num_ties: int = Field(ge=0)
    num_losses: int = Field(ge=0)
    win_rate: Metric | None = Field(None, description="Share of pairs that the policy wins; a tie counts half")
    length_controlled: Metric | None = Field(None, description="Win rate that a logistic model gives at equal lengths")
    p_value: float | None = Field(None, description="Exact sign test over prompts, two-sided")
    p_adjusted: float | None = Field(None, description="By Holm's rule for the number of judges")
    is_outcome: bool = Field(False, description="Whether it says right or wrong")
    policy: Metric | None = Field(None, description="Mean value, or share of right completions")
    reference: Metric | None = None
    difference: Metric | None = Field(None, description="Paired by prompt")
    pass_at: tuple[Metric, ...] = Field((), description="pass@k of the policy, k = 2, 4 …")
    reference_pass_at: tuple[Metric, ...] = ()
    first_share: float | None = Field(
        None, description="Of a judge that sees pairs in both orders: share of its choices that came first"
    )
    agreement: float | None = Field(None, description="Share of pairs with the same answer in both orders")
    people: PeopleFigures | None = Field(None, description="Of a judge that is people")
    problem: str = Field("", description="Why it is no judge of this policy; empty: it is one")

    @property
    def is_independent(self) -> bool:
        """Whether it took no part in the training, as far as is known."""
        return not self.part_in_training

    @property
    def counts(self) -> bool:
        """Whether it may decide about the policy."""
        return self.is_independent and not self.problem and self.win_rate is not None


class PolicyEvaluation(Frozen):
    """`policy_evaluation.json`: policy against reference."""

    num_prompts: int = Field(ge=1)
    terms: tuple[ComparedTerm, ...] = Field((), description="Each reward, where it is not one reward model alone")
    judges: tuple[JudgeFigures, ...] = Field((), description="In the order of the configuration")
    reward_policy: Metric
    reward_reference: Metric
    reward_difference: Metric = Field(description="Paired by prompt, with bootstrap interval")
    win_rate: Metric = Field(description="By the sum of the rewards; a tie, as in SideBySide, counts half")
    kl: Metric = Field(description="Sampled estimate of KL(policy ‖ reference) per completion, nats")
    length_policy: Metric
    length_reference: Metric
    ended_policy: Metric = Field(description="Share of completions that ended with an end token")
    ended_reference: Metric
    identical_completions: Metric | None = Field(
        None, description="Share of completions that equal the reference's with the same seed, word for word"
    )
    reward_differences: Histogram
    samples: tuple[SideBySide, ...] = ()


class GateRule(Frozen):
    """One rule of a gate, with the figure that was found."""

    name: str
    wanted: str
    found: str
    passed: bool


class GateDecision(Frozen):
    """The approval of a model: a person's decision, or that none was made yet or in time."""

    outcome: Literal["approved", "waived", "rejected", "waiting", "timed_out"] = Field(
        description="approved: the rules passed, and a person agrees; waived: they failed, and a person overrules them"
    )
    by: str = Field("", description="Person who decided; empty: no decision")
    reason: str = ""
    at: str = Field("", description="Time of the decision, UTC, ISO 8601; empty: no decision")
    origin: str = Field("", description="Source of the decision: `rlhf approve`, or a form in Prefect")
    asked_at: str = Field("", description="Time of the first request, UTC, ISO 8601")
    until: str = Field("", description="Deadline, UTC, ISO 8601; then silence is a rejection. Empty: none")
    earlier: tuple["GateDecision", ...] = Field((), description="Decisions that this one replaces, the oldest first")


class GateVerdict(Frozen):
    """A gate's decision; a waived gate did not pass, but a person overruled it and gave a reason."""

    name: Literal["reward_model", "policy"]
    passed: bool = Field(description="Whether the model met every rule")
    rules: tuple[GateRule, ...]
    waived_by: str = ""
    waiver_reason: str = ""
    advice: str = Field("", description="What the figures show beyond the rules, and what to change")
    decision: GateDecision | None = Field(None, description="null: no approval was required")
    decision_key: str = Field("", description="Identifies model, figures and rules of the decision")
    certificate: ArtifactRef | None = Field(
        None, description="Of a reward model: the judged evaluation, which the policy stage requires"
    )

    @property
    def opens(self) -> bool:
        """Whether the pipeline continues after this gate."""
        if self.decision is not None:
            outcome = self.decision.outcome
            return (outcome == "approved" and self.passed) or (outcome == "waived" and not self.passed)
        return self.passed or bool(self.waiver_reason)

    @property
    def model(self) -> str:
        """The judged model as text: `reward model`."""
        return self.name.replace("_", " ")

    @property
    def outcome_text(self) -> str:
        """Outcome of the gate in two or three words, to follow its name."""
        outcome = self.decision.outcome if self.decision else ""
        if self.decision and outcome in ("approved", "waived", "rejected"):
            return f"{outcome} by {self.decision.by or 'an unnamed person'}"
        if outcome:
            return "waits for a decision" if outcome == "waiting" else "not decided in time"
        if self.passed:
            return "passed"
        return f"waived by {self.waived_by or 'an unnamed person'}" if self.opens else "NOT passed"

    @property
    def closed_because(self) -> str:
        """Why the pipeline does not continue, as the end of a sentence; empty where it does."""
        if self.opens:
            return ""
        outcome = self.decision.outcome if self.decision else ""
        return {
            "waiting": f"the {self.model} waits at its gate for a decision",
            "timed_out": f"no decision about the {self.model} came in time",
            "rejected": f"the {self.model} was rejected at its gate",
        }.get(outcome, f"the {self.model} did not pass its gate")


class CheckFinding(Frozen):
    """One row of the system check."""

    name: str
    found: str
    wanted: str
    verdict: Literal["ok", "warning", "failure"]
    advice: str = ""


class StageRecord(Frozen):
    """Status and result of one stage in this run."""

    stage: StageName
    status: Literal["ran", "reused", "failed", "skipped", "waits"]
    key: str = ""
    digest: str = ""
    path: str = ""
    runtime: str = ""
    image_digest: str = ""
    duration_s: float = Field(0, ge=0)
    attempts: int = Field(0, ge=0)
    message: str = Field("", description="Why it was skipped or failed, or what it waits for")
    metrics: tuple[Metric, ...] = ()
    mlflow_run_id: str = ""


class RunChange(Frozen):
    """What is not as in the last run of the same name: a key of the configuration, the code, or a figure."""

    kind: Literal["setting", "code", "figure"]
    name: str
    before: str
    now: str


# Why a stage runs of which the run never had a result.
FIRST_TIME = "this run has no result of it yet"


class PipelineRecord(Frozen):
    """`pipeline.json`: the orchestrator's record of a run; input of write_report."""

    run_id: str
    run_name: str
    started_at: str
    command: str
    config_yaml: str
    git_commit: str = ""
    mlflow_url: str = ""
    prefect_url: str = ""
    profile_name: str = ""
    checks: tuple[CheckFinding, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    gates: tuple[GateVerdict, ...] = ()
    dataset_origin: str = ""
    base_model_origin: str = ""
    measured: tuple[tuple[str, str], ...] = Field((), description="Per stage: measured_contract.json as text")
    stopped_because: str = Field("", description="Why the run ended before its last stage; empty: it did not")
    until: StageName | None = Field(None, description="The last stage before the report, where the user set one")
    last_run_at: str = Field("", description="Start of the last run of the same name, UTC, ISO 8601; empty: none")
    changes: tuple[RunChange, ...] = Field((), description="What is not as in that run")
