"""evaluate_policy: judge what policy and reference wrote on held-out prompts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import Judge
from containers.contracts.names import COMPLETIONS_FILE, PLOTS_FOLDER, POLICY_EVALUATION_FILE, SAMPLED_FILE
from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.judges.base import Pair, start_judge
from containers.judges.figures import Judgement, all_figures
from containers.rewards.base import Answered, close_rewards, start_rewards
from containers.rewards.judging import Judged, compared_terms, judge
from containers.rollouts.comparison import ComparedPrompt, compare_policies, write_policy_plots
from containers.rollouts.sampled import Sampled, read_sampled


def run(context: StageContext) -> tuple[Metric, ...]:
    """Score both sides, and write `policy_evaluation.json`, `completions.parquet` and plots.

    Raises:
        DivergedError: a score is not finite.
    """
    config = context.spec.config
    if not isinstance(config, EvaluatePolicyConfig):
        raise BadConfigError(f"evaluate_policy was given the config of {config.stage}.")
    sampled = read_sampled(context.input_path("completions") / SAMPLED_FILE)
    rewarded, pairs = _rewarded(context, config, sampled), _pairs(sampled)
    judgements = [_judged(context, config, judge, pairs) for judge in config.judges]
    compared = _compared(sampled, rewarded, judgements)
    evaluation = compare_policies(
        compared, confidence=config.confidence, num_samples=config.num_samples, terms=compared_terms(config.rewards)
    )
    prompt_ids = [prompt.prompt_id for prompt in sampled.repeated]
    judges = all_figures(judgements, pairs, prompt_ids, confidence=config.confidence)
    evaluation = evaluation.model_copy(update={"judges": judges})
    (context.output / POLICY_EVALUATION_FILE).write_text(evaluation.model_dump_json(indent=2), encoding="utf-8")
    _write_completions(compared, judgements, context.output / COMPLETIONS_FILE)
    write_policy_plots(compared, context.output / PLOTS_FOLDER)
    figures = (value for _, value in evaluation if isinstance(value, Metric))
    of_terms = (metric for term in evaluation.terms for metric in (term.policy, term.reference, term.difference))
    first = (judge.win_rate for judge in judges if judge.win_rate is not None)
    gain = (evaluation.reward_difference,) if judges else ()
    others = (metric for metric in (*figures, *of_terms, *_of_judges(judges)) if metric not in gain)
    return (*first, *gain, *others)


def _of_judges(judges: Sequence[JudgeFigures]) -> tuple[Metric, ...]:
    """Return the figures of the judges beside their win rates."""
    return tuple(
        metric
        for one in judges
        for metric in (one.length_controlled, one.policy, one.reference, one.difference, *one.pass_at)
        if metric is not None
    )


def _pairs(sampled: Sampled) -> list[Pair]:
    """Return the completions of both sides that were drawn with the same seed."""
    return [
        Pair(
            Answered.of(prompt, policy, opening=sampled.opening),
            Answered.of(prompt, reference, opening=sampled.opening),
        )
        for prompt, policy, reference in zip(sampled.repeated, sampled.policy, sampled.reference, strict=True)
    ]


def _judged(context: StageContext, config: EvaluatePolicyConfig, judge: Judge, pairs: Sequence[Pair]) -> Judgement:
    """Return what that judge says; one that could not tell much is noted."""
    context.recorder.progress(0, len(pairs), unit="pairs", text=f"judged by {judge.name}")
    started = start_judge(context, config, judge)
    try:
        verdicts = started.verdicts(pairs)
        part, places = started.part_in_training(), started.places()
        found = Judgement(judge, verdicts, started.shown(), part, places, started.people())
    finally:
        started.close()
    context.recorder.progress(len(pairs), len(pairs), unit="pairs", text=f"judged by {judge.name}")
    if found.part:
        context.recorder.note(f"Warning: judge {judge.name}: {found.part}. Its win is no evidence.")
    return found


def _rewarded(context: StageContext, config: EvaluatePolicyConfig, sampled: Sampled) -> Judged:
    """Return what the rewards say about the policy's completions, and then the reference's."""
    prompts = sampled.repeated
    answered = [
        Answered.of(prompt, completion, opening=sampled.opening)
        for prompt, completion in zip([*prompts, *prompts], [*sampled.policy, *sampled.reference], strict=True)
    ]
    started = start_rewards(context, config)
    try:
        return judge(started, answered)
    finally:
        close_rewards(started)


def _compared(sampled: Sampled, found: Judged, judgements: Sequence[Judgement]) -> list[ComparedPrompt]:
    """Return both sides' completions with their rewards and what the judges say, by prompt."""
    size, num_completions = sampled.of_each, len(sampled.policy)

    def part(values: Sequence[float], start: int) -> tuple[float, ...]:
        return tuple(values[start : start + size])

    def of_terms(start: int) -> dict[str, tuple[float, ...]]:
        return {name: part(values, start) for name, values in found.values.items()}

    return [
        ComparedPrompt(
            prompt=prompt,
            policy=sampled.policy[start : start + size],
            reference=sampled.reference[start : start + size],
            rewards_policy=part(found.totals, start),
            rewards_reference=part(found.totals, num_completions + start),
            log_ratios=part(sampled.log_ratios, start),
            values_policy=of_terms(start),
            values_reference=of_terms(num_completions + start),
            points={
                one.judge.name: tuple(verdict.points for verdict in one.verdicts[start : start + size])
                for one in judgements
            },
        )
        for start, prompt in zip(range(0, num_completions, size), sampled.prompts, strict=True)
    ]


def _write_completions(compared: Sequence[ComparedPrompt], judgements: Sequence[Judgement], path: Path) -> None:
    """Write one row per prompt and completion: texts, rewards, each judge's points, lengths, and the log-ratio."""
    rows: list[dict[str, Any]] = [
        {
            "prompt_id": item.prompt.prompt_id,
            "domain": item.prompt.domain,
            "prompt": [dict(message) for message in item.prompt.conversation],
            "number": number,
            "policy": item.policy[number].text,
            "reference": item.reference[number].text,
            "reward_policy": item.rewards_policy[number],
            "reward_reference": item.rewards_reference[number],
            "values_policy": {name: values[number] for name, values in item.values_policy.items()},
            "values_reference": {name: values[number] for name, values in item.values_reference.items()},
            "winner": item.winner(number, number),
            "log_ratio": item.log_ratios[number],
            "num_tokens_policy": len(item.policy[number].completion_ids),
            "num_tokens_reference": len(item.reference[number].completion_ids),
            "ended_policy": item.policy[number].ended,
            "ended_reference": item.reference[number].ended,
        }
        for item in compared
        for number in range(len(item.policy))
    ]
    for place, row in enumerate(rows if judgements else ()):  # parquet has no column without fields
        row["points"] = {one.judge.name: one.verdicts[place].points for one in judgements}
        row["untold"] = {one.judge.name: one.verdicts[place].reason for one in judgements}
    parquet.write_table(pa.Table.from_pylist(rows), path)
