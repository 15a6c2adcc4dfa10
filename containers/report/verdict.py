"""The top of the page: the run's outcome in one sentence, and the main figures."""

from dataclasses import replace

from containers.contracts.certificate import TEST_SUITE
from containers.contracts.funnel import Funnel
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.records import SCORE_TOLERANCE
from containers.document.model import Banner, Card, Tone
from containers.evals.sets.records import MODEL_WORDS
from containers.formatting import duration, interval, one_line, quantity, sample_size
from containers.report.champions import decision_cards, decision_statements
from containers.report.gates import GATE_STAGES, MESSAGE_LIMIT, Statement, gate_statement, sentence
from containers.report.inputs import ReportInputs
from containers.report.policy.judges import independent_judges
from containers.report.policy.sets import losing_sets, points_text, worst_change
from containers.report.stages import absence, ends_early_as_asked, gpu_seconds, is_part
from containers.report.suites import optimism_text

_BY_ITS_REWARDS = (
    "Only what trained it, or learnt from the same data, has judged it. Name a judge in evaluate_policy.judges."
)
_CHANCE = 0.5
_WORST_FIRST: tuple[Tone, ...] = ("bad", "warn", "plain", "good")


def run_verdict(inputs: ReportInputs) -> Banner:
    """Return the run's outcome: the worst statement is the headline, the others follow in order."""
    statements = _statements(inputs)
    first = next(item for tone in _WORST_FIRST for item in statements if item.tone == tone)
    others = [item for item in statements if item is not first]
    texts = [first.detail, *(" ".join(part for part in (item.text, item.detail) if part) for item in others)]
    return Banner(first.tone, first.text, (*(text for text in texts if text), *inputs.problems))


def headline_cards(inputs: ReportInputs) -> tuple[Card, ...]:
    """Return the main figures, each with unit, sample size, interval and origin."""
    policy = inputs.policy
    judged, trained = StageName.EVALUATE_REWARD_MODEL, StageName.EVALUATE_POLICY
    of_policy = (
        *(
            _card(f"Win rate by {judge.name}, independent", "judge", judge.win_rate, noun="held-out prompts", absent="")
            for judge in (independent_judges(policy) if policy else ())
        ),
        _card(
            "Reward gain over the reference", "reward gain", policy.reward_difference if policy else None,
            noun="held-out prompts", absent=absence(inputs, trained), signed=True,
        ),
        _card(
            "Win rate by the rewards", "win rate", policy.win_rate if policy else None,
            noun="held-out prompts", absent=absence(inputs, trained),
        ),
        _card(
            "KL to the reference", "KL", policy.kl if policy else None,
            noun="held-out prompts", absent=absence(inputs, trained),
        ),
    )  # fmt: skip
    is_about_reward_model_only = bool(inputs.decisions) and policy is None
    return (
        *decision_cards(inputs),
        *(of_policy if is_part(inputs, trained) and not is_about_reward_model_only else ()),
        *(_accuracy_card(inputs) if is_part(inputs, judged) else ()),
        *_sets_card(inputs),
        *_fine_tuning_card(inputs),
        *_data_cards(inputs),
        _duration_card(inputs),
    )


def _statements(inputs: ReportInputs) -> list[Statement]:
    """Return statements about the run, in the order of the pipeline; never empty."""
    pipeline = inputs.pipeline
    failed_checks = ", ".join(check.name for check in pipeline.checks if check.verdict == "failure")
    statements = [
        Statement("bad", f"{record.stage} failed.", one_line(record.message, MESSAGE_LIMIT))
        for record in pipeline.stages
        if record.status == "failed"
    ]
    if failed_checks:
        statements.insert(0, Statement("bad", "The system check failed: nothing was started.", f"{failed_checks}."))
    passed = {verdict.name for verdict in pipeline.gates if verdict.passed and verdict.opens}
    gates = [gate_statement(inputs, verdict) for verdict in pipeline.gates]
    if passed == set(GATE_STAGES.values()):
        statements.append(_all_passed(inputs))
        gates.reverse()  # the policy's figures are what the headline is about
    statements += gates
    statements = [*decision_statements(inputs), *statements, *_losses(inputs)]
    if any(item.tone == "bad" for item in statements):
        return statements
    if pipeline.stopped_because and all(verdict.opens for verdict in pipeline.gates):
        why = one_line(pipeline.stopped_because, MESSAGE_LIMIT)
        return [*statements, Statement("bad", "The run stopped before its end.", sentence(why))]
    if inputs.decisions:
        return statements
    if ends_early_as_asked(inputs):
        statements.append(Statement("plain", f"The run went up to {pipeline.until}, as requested."))
        return statements
    if inputs.policy is not None and not independent_judges(inputs.policy):
        statements.append(Statement("plain", "No independent judge has judged the policy.", _BY_ITS_REWARDS))
    if passed == {"reward_model"} and inputs.gate("policy") is None:
        statements.append(
            Statement("plain", "The policy was not judged.", sentence(absence(inputs, StageName.EVALUATE_POLICY)))
        )
    if not any(is_part(inputs, stage) for stage in GATE_STAGES):
        statements.append(Statement("plain", "Every stage ran.", "No gate judges what this run made."))
    elif not pipeline.gates:
        statements.append(
            Statement("plain", "No gate was reached.", sentence(absence(inputs, StageName.EVALUATE_REWARD_MODEL)))
        )
    return statements


def _all_passed(inputs: ReportInputs) -> Statement:
    """Say that all gates passed, and by whose word the policy is better, where an independent judge is sure of it."""
    sure = [
        judge
        for judge in (independent_judges(inputs.policy) if inputs.policy else ())
        if judge.win_rate is not None and judge.win_rate.ci_low is not None and judge.win_rate.ci_low > _CHANCE
    ]
    if not sure:
        return Statement("good", "All gates passed.")
    names = " and ".join(judge.name for judge in sure)
    return Statement(
        "good",
        f"The policy is better than its reference, by the word of {names}, and all gates passed.",
        f"{names} took no part in training.",
    )


def _losses(inputs: ReportInputs) -> list[Statement]:
    """Say on which standard sets the last model is worse than the one before, beyond chance."""
    lost = [] if inputs.sets is None else losing_sets(inputs.sets)
    if not lost or inputs.sets is None:
        return []
    names = " and ".join(name for name, _ in lost)
    figures = "; ".join(f"{name} {points_text(change)}" for name, change in lost)
    last = MODEL_WORDS[inputs.sets.models[-1]].capitalize()
    return [Statement("warn", f"{last} lost on {names}.", f"{figures}, against the model before it.")]


def _sets_card(inputs: ReportInputs) -> tuple[Card, ...]:
    """The worst change on a standard set; nothing in a run without one that a rule could judge."""
    worst = None if inputs.sets is None else worst_change(inputs.sets)
    if worst is None:
        return ()
    name, change = worst
    value, _, spread = points_text(change).partition(" (")
    return (
        Card(
            f"Worst change on a standard set: {name}",
            "standard set",
            value=value,
            interval=spread.removesuffix(")"),
            detail=f"n = {sample_size(change, 'items')}",
        ),
    )


def _card(label: str, term: str, metric: Metric | None, *, noun: str, absent: str, signed: bool = False) -> Card:
    if metric is None:
        return Card(label, term, detail=absent)
    value = quantity(metric.value, metric.unit)
    return Card(
        label,
        term,
        value=f"+{value}" if signed and metric.value >= SCORE_TOLERANCE else value,
        interval=interval(metric),
        detail=f"n = {sample_size(metric, noun)}" if metric.count is not None else "",
        origin=metric.origin,
    )


def _accuracy_card(inputs: ReportInputs) -> tuple[Card, ...]:
    """The reward model's accuracy on the test pairs, and by how much it is too high if these chose its checkpoint."""
    certificate, absent = inputs.reward_model, absence(inputs, StageName.EVALUATE_REWARD_MODEL)
    suites = certificate.suites if certificate else ()
    accuracy = next((suite.accuracy for suite in suites if suite.name == TEST_SUITE), None)
    card = _card("Reward model accuracy", "accuracy", accuracy, noun="test pairs", absent=absent)
    if accuracy is None or certificate is None or certificate.choice is None:
        return (card,)
    caveat = f"They also chose the checkpoint: it may be {optimism_text(certificate.choice)}."
    return (replace(card, detail=f"{card.detail}. {caveat}".removeprefix(". ")),)


def _fine_tuning_card(inputs: ReportInputs) -> tuple[Card, ...]:
    """The held-out loss of fine-tuning, in a run that judges nothing else."""
    record = inputs.stage(StageName.TRAIN_SFT)
    if record is None or any(is_part(inputs, stage) for stage in GATE_STAGES):
        return ()
    loss = next((metric for metric in record.metrics if metric.name == "validation_loss"), None)
    absent = absence(inputs, StageName.TRAIN_SFT)
    return (_card("Held-out loss of a token", "held-out loss", loss, noun="completions", absent=absent),)


def _data_cards(inputs: ReportInputs) -> tuple[Card, ...]:
    """How many rows of each kind that the run has are used."""
    kinds = (
        (StageName.FILTER_DATASET, "Preference pairs used", "pair", inputs.funnel),
        (StageName.FILTER_PROMPTS, "Prompts used", "", inputs.prompts),
        (StageName.FILTER_DEMONSTRATIONS, "Demonstrations used", "", inputs.demonstrations),
    )
    return tuple(
        Card(label, term, detail=absence(inputs, stage)) if funnel is None else _data_card(label, term, funnel)
        for stage, label, term, funnel in kinds
        if is_part(inputs, stage) and not (funnel is None and STAGE_FACTS[stage].is_optional)
    )


def _data_card(label: str, term: str, funnel: Funnel) -> Card:
    train, held_out = {
        "pairs": (funnel.train_pairs, funnel.validation_pairs),
        "prompts": (funnel.policy_train_prompts, funnel.policy_eval_prompts + funnel.policy_frozen_prompts),
        "demonstrations": (funnel.train_demonstrations, funnel.validation_demonstrations),
    }[funnel.kind]
    return Card(
        label,
        term,
        value=f"{train + held_out:,} {funnel.kind}",
        interval=f"{train:,} to train, {held_out:,} held out",
        detail=f"of {funnel.rows_read:,} rows read",
    )


def _duration_card(inputs: ReportInputs) -> Card:
    ran = [
        record
        for record in inputs.pipeline.stages
        if record.status in ("ran", "failed") and record.stage is not StageName.WRITE_REPORT
    ]
    reused = sum(record.status == "reused" for record in inputs.pipeline.stages)
    on_gpus = sum(gpu_seconds(inputs, record) for record in ran)
    return Card(
        "Time spent in stages",
        "duration",
        value=duration(sum(record.duration_s for record in ran)),
        interval=f"{len(ran)} run, {reused} reused",
        detail=f"{duration(on_gpus)} of GPU time" if on_gpus else "without the writing of this page",
    )
