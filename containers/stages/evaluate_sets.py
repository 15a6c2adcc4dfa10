"""evaluate_sets: judge the answers to standard sets, and compare the models of the run on them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.contracts.configs.answer_sets import CHATS, WITH_ANSWERS, StandardSet
from containers.contracts.configs.evaluate_sets import EvaluateSetsConfig
from containers.contracts.configs.parts.rewards import ExactTerm, MathTerm
from containers.contracts.names import SAMPLED_FILE, SET_ANSWERS_FILE, SET_ITEMS_FILE, SETS_EVALUATION_FILE
from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures
from containers.contracts.registries import REWARDS, STANDARD_SETS
from containers.evals.sets.base import CannotTellError, SetItem, SetKind
from containers.evals.sets.figures import (
    ItemValues,
    model_differences,
    model_scores,
    set_parts,
    told,
    untold_reasons,
)
from containers.evals.sets.records import SetModel, SetResult, SetSample, SetsEvaluation
from containers.evals.suites.base import SuiteRows
from containers.formatting import short_digest
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.judges.base import Pair, start_judge
from containers.judges.figures import Judgement, all_figures
from containers.rewards.base import Answered, NoValue
from containers.rollouts.generate import Completion
from containers.rollouts.sampled import Sampled, read_sampled
from containers.rollouts.set_answers import SetAnswer, read_answers

_ORDER: tuple[SetModel, ...] = ("before", "start", "policy")
_SHOWN_CHARACTERS = 1500
_TERMS = {"math": MathTerm(name="math"), "exact": ExactTerm(name="exact")}
# By item: of each model, its answers in order.
Answers = Mapping[str, Mapping[SetModel, Sequence[SetAnswer]]]


def run(context: StageContext) -> tuple[Metric, ...]:
    """Write `sets_evaluation.json`, and `set_items.parquet` with a row for each item.

    Raises:
        MissingPrerequisiteError: the answers are missing or damaged.
    """
    config = context.spec.config
    if not isinstance(config, EvaluateSetsConfig):
        raise BadConfigError(f"evaluate_sets was given the config of {config.stage}.")
    answers = read_answers(context.input_path("answers") / SET_ANSWERS_FILE)
    models = tuple(model for model in _ORDER if any(answer.model == model for answer in answers))
    by_judges = _by_judges(context, config)
    results, rows = [], []
    for place, one in enumerate(config.sets):
        context.recorder.progress(place, len(config.sets), unit="sets", text=f"judges {one.name}")
        own = [answer for answer in answers if answer.set == one.name]
        result, items = _judged(context, config, one, own, models)
        results.append(result.model_copy(update={"judges": by_judges.get(one.name, ())}))
        rows += [_row(one.name, item, models) for item in items]
    evaluation = SetsEvaluation(models=models, confidence=config.confidence, sets=tuple(results))
    (context.output / SETS_EVALUATION_FILE).write_text(evaluation.model_dump_json(indent=2), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(rows), context.output / SET_ITEMS_FILE)
    return tuple(_metrics(results))


def _metrics(results: Sequence[SetResult]) -> list[Metric]:
    found: list[Metric] = []
    for result in results:
        for score in result.scores:
            found += [score.score, *score.pass_at]
        found += [one.difference for one in result.differences]
        for judge in result.judges:
            found += [
                metric.model_copy(update={"name": f"{result.name}_{metric.name}"})
                for metric in (judge.win_rate, judge.length_controlled)
                if metric is not None
            ]
    return found


def _judged(
    context: StageContext,
    config: EvaluateSetsConfig,
    task: StandardSet,
    own: Sequence[SetAnswer],
    models: tuple[SetModel, ...],
) -> tuple[SetResult, list[ItemValues]]:
    """Return the figures of a set, and what its rule says of each item; of chats only what they are."""
    kind: SetKind = STANDARD_SETS[task.kind]
    source = context.input(f"suite_{task.name}")
    rows = kind.read(context.input_path(f"suite_{task.name}"))
    answers = _by_item(own)
    # Of a local file its name alone: reports go to people who have another machine.
    place = Path(source.origin).name if Path(source.origin).is_absolute() else source.origin
    origin = f"{place}, {short_digest(source.digest)}"
    result = _described(task, kind, rows, answers, origin=origin)
    if task.kind == CHATS:
        return result, []
    known = {item.item_id: item for item in rows.items if isinstance(item, SetItem)}
    items = _values(context, config, task, known, answers, models)
    used = told(items)
    lost, won = (
        _samples(used, known, answers, limit=config.num_samples) if {"start", "policy"} <= set(models) else ([], [])
    )
    update = {
        "untold": untold_reasons(items),
        "scores": model_scores(used, models, name=task.name, confidence=config.confidence),
        "differences": model_differences(used, models, name=task.name, confidence=config.confidence),
        "parts": set_parts(used, models),
        "lost": tuple(lost),
        "won": tuple(won),
    }
    return result.model_copy(update=update), items


def _by_item(own: Sequence[SetAnswer]) -> Answers:
    found: defaultdict[str, defaultdict[SetModel, list[SetAnswer]]] = defaultdict(lambda: defaultdict(list))
    for answer in own:
        found[answer.item_id][answer.model].append(answer)  # type: ignore[index]
    return found


def _described(task: StandardSet, kind: SetKind, rows: SuiteRows, answers: Answers, *, origin: str) -> SetResult:
    first = next(iter(answers.values()), {})
    return SetResult(
        name=task.name,
        kind=task.kind,
        title=f"{kind.title}: {task.task}" if task.task else kind.title,
        measure=kind.measure,
        source=kind.source,
        origin=origin,
        rows_read=rows.rows_read if task.has_rows else len(answers),
        left_out_because=tuple(sorted(rows.left_out.items(), key=lambda item: -item[1])),
        left_out_examples=rows.examples,
        num_items=len(answers),
        answers_per_item=max((len(of) for of in first.values()), default=1),
    )


def _values(
    context: StageContext,
    config: EvaluateSetsConfig,
    task: StandardSet,
    known: Mapping[str, SetItem],
    answers: Answers,
    models: tuple[SetModel, ...],
) -> list[ItemValues]:
    """Return what the set's rule says of each item."""
    places = [
        (item_id, model, answer) for item_id, of in answers.items() for model in models for answer in of.get(model, ())
    ]
    values = dict(zip(map(_key, places), _told_values(context, config, task, known, places), strict=True))
    return [_item_values(item_id, of, models, values) for item_id, of in answers.items()]


_Place = tuple[str, SetModel, SetAnswer]


def _key(place: _Place) -> tuple[str, SetModel, int]:
    item_id, model, answer = place
    return item_id, model, answer.number


def _told_values(
    context: StageContext,
    config: EvaluateSetsConfig,
    task: StandardSet,
    known: Mapping[str, SetItem],
    places: Sequence[_Place],
) -> list[float | NoValue]:
    """Return for each answer 1 or 0, or why that cannot be told."""
    kind: SetKind = STANDARD_SETS[task.kind]
    missing = [NoValue(f"its question is {answer.problem}") if answer.problem else None for _, _, answer in places]
    if task.kind in WITH_ANSWERS:
        reward = REWARDS[task.kind](context, config.evaluation, _TERMS[task.kind])
        try:
            found = reward.values([_answered(known[item_id], answer) for item_id, _, answer in places])
        finally:
            reward.close()
    elif kind.value is None:  # the harness told
        found = [answer.value for _, _, answer in places]
    else:
        found = [_by_rule(kind, known[item_id], answer) for item_id, _, answer in places]
    return [value if reason is None else reason for value, reason in zip(found, missing, strict=True)]


def _by_rule(kind: SetKind, item: SetItem, answer: SetAnswer) -> float | NoValue:
    if kind.value is None:
        return NoValue("the set has no rule")
    try:
        return kind.value(item, answer.text)
    except CannotTellError as error:
        return NoValue(str(error))


def _answered(item: SetItem, answer: SetAnswer) -> Answered:
    right = next(iter(item.answers), None)
    completion = Completion((), (), text=answer.text, ended=answer.ended)
    return Answered(item.prompt, completion, answer=right, other_answers=item.answers[1:])


def _item_values(
    item_id: str,
    of: Mapping[SetModel, Sequence[SetAnswer]],
    models: tuple[SetModel, ...],
    values: Mapping[tuple[str, SetModel, int], float | NoValue],
) -> ItemValues:
    some = next(iter(of.values()))[0]
    own = {model: [values[item_id, model, answer.number] for answer in of.get(model, ())] for model in models}
    reasons = [value.reason for found in own.values() for value in found if isinstance(value, NoValue)]
    if any(not found for found in own.values()):
        reasons.append("a model did not answer it")
    return ItemValues(
        item_id=item_id,
        prompt_id=some.prompt_id,
        subset=some.subset,
        values={
            model: tuple(value for value in found if not isinstance(value, NoValue)) for model, found in own.items()
        },
        ended={model: tuple(answer.ended for answer in of.get(model, ())) for model in models},
        untold=next(iter(reasons), ""),
    )


def _samples(
    items: Sequence[ItemValues], known: Mapping[str, SetItem], answers: Answers, *, limit: int
) -> tuple[list[SetSample], list[SetSample]]:
    """Return items that the policy lost against its start model, and that it won, those of most difference first."""

    def gain(item: ItemValues) -> float:
        return item.mean("policy") - item.mean("start")

    def sample(item: ItemValues) -> SetSample:
        row, of = known.get(item.item_id), answers[item.item_id]
        asked = row.prompt[-1]["content"] if row else f"question {item.item_id} of the task"
        return SetSample(
            prompt=asked[:_SHOWN_CHARACTERS],
            wanted=" or ".join(row.answers) if row else "",
            start=of["start"][0].text[:_SHOWN_CHARACTERS],
            policy=of["policy"][0].text[:_SHOWN_CHARACTERS],
        )

    ordered = sorted(items, key=gain)
    lost = [sample(item) for item in ordered[:limit] if gain(item) < 0]
    return lost, [sample(item) for item in reversed(ordered[len(ordered) - limit :]) if gain(item) > 0]


def _row(name: str, item: ItemValues, models: tuple[SetModel, ...]) -> dict[str, Any]:
    """Return a row of `set_items.parquet`: the share of right answers of each model; null where nothing was told."""
    shares = {model: None if item.untold else item.mean(model) for model in models}
    return {
        "set": name,
        "item_id": item.item_id,
        "prompt_id": item.prompt_id,
        "subset": item.subset,
        **{model: shares.get(model) for model in _ORDER},
        "untold": item.untold,
    }


def _by_judges(context: StageContext, config: EvaluateSetsConfig) -> dict[str, tuple[JudgeFigures, ...]]:
    """Return what each judge says of the chats, by set; nothing without chats or without judges."""
    path = context.input_path("answers") / SAMPLED_FILE
    if not path.is_file() or not config.judges:
        return {}
    sampled = read_sampled(path)
    pairs = _pairs(sampled)
    judgements = []
    for judge in config.judges:
        context.recorder.progress(0, len(pairs), unit="pairs", text=f"judged by {judge.name}")
        started = start_judge(context, config.evaluation, judge)
        try:
            verdicts = started.verdicts(pairs)
            judgements.append(Judgement(judge, verdicts, started.shown(), started.part_in_training(), started.places()))
        finally:
            started.close()
    found = {}
    for name in dict.fromkeys(prompt.domain for prompt in sampled.prompts):
        places = [place for place, prompt in enumerate(sampled.prompts) if prompt.domain == name]
        of_set = [
            Judgement(one.judge, [one.verdicts[place] for place in places], one.shown, one.part, one.places)
            for one in judgements
        ]
        found[name] = all_figures(
            of_set,
            [pairs[place] for place in places],
            [sampled.prompts[place].prompt_id for place in places],
            confidence=config.confidence,
        )
    return found


def _pairs(sampled: Sampled) -> list[Pair]:
    return [
        Pair(
            Answered.of(prompt, policy, opening=sampled.opening),
            Answered.of(prompt, start, opening=sampled.opening),
        )
        for prompt, policy, start in zip(sampled.prompts, sampled.policy, sampled.reference, strict=True)
    ]
