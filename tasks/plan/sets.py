"""Plans of standard sets: what the models of a run answer, and who judges it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.contracts.identity import stage_profile
from containers.contracts.names import StageName
from containers.contracts.registries import STANDARD_SETS
from containers.evals.sets.base import SetItem
from containers.harness.errors import BadDataError
from tasks.plan.estimates import Work
from tasks.plan.figures import Figure, PlanContext, StagePlan, time_figure, work_figure
from tasks.plan.vllm import writing_memory, writing_work

# English text.
_CHARACTERS_PER_TOKEN = 4.0


@dataclass(frozen=True)
class _Asked:
    """A set's questions: how many answers one model writes, and tokens of a question in the mean."""

    answers: int
    prompt_tokens: float
    longest_answer: int


def plan_answer_sets(context: PlanContext) -> StagePlan:
    """Plan of the answers, one model at a time; sets on the hub and tasks of the harness are not counted."""
    config, stage = context.config.answer_sets, StageName.ANSWER_SETS
    if config is None:
        return context.plan_of(stage)
    asked = [_asked(one, config) for one in config.sets]
    known = [one for one in asked if one is not None]
    num_models = 1 + context.config.has_policy + (context.config.train_sft is not None)
    missing = len(asked) - len(known)
    note = f"without {missing} of the sets, whose questions are not counted here" if missing else ""
    work = _writing(context, config, known, num_models=num_models)
    return replace(
        context.plan_of(stage),
        figures=(
            Figure("sets", len(config.sets), "sets", "exact"),
            Figure("models", num_models, "models", "exact"),
            Figure("answers", num_models * sum(one.answers for one in known), "answers", "exact", note),
        ),
        memory=_memory(context, config, known),
        work=work_figure(work, missing=context.missing),
        time=time_figure(context, stage, work, note=note, missing=context.missing),
    )


def plan_evaluate_sets(context: PlanContext) -> StagePlan:
    """Plan of the verdicts: rules take seconds; judges of chats are not counted."""
    stage, config = StageName.EVALUATE_SETS, context.config.answer_sets
    has_judges = config is not None and config.has_chats and bool(context.config.evaluate_policy.judges)
    note = "without the judges of open questions" if has_judges else ""
    return replace(context.plan_of(stage), time=time_figure(context, stage, Work(), note=note))


def _asked(one: StandardSet, config: AnswerSetsConfig) -> _Asked | None:
    """The set's questions; None where they cannot be counted here."""
    if one.hub_id is not None or not one.has_rows:
        return None
    try:
        rows = STANDARD_SETS[one.kind].read(Path(one.path))
    except (BadDataError, OSError):  # the system check says why
        return None
    items = [item for item in rows.items if isinstance(item, SetItem)]
    if not items:
        return None
    count = len(items) if config.max_items is None else min(config.max_items, len(items))
    turns = fmean(1 + len(item.further) for item in items)
    characters = fmean(sum(len(turn["content"]) for turn in item.prompt) for item in items) + len(one.instruction)
    return _Asked(
        answers=round(count * turns * config.completions_per_item),
        prompt_tokens=min(characters / _CHARACTERS_PER_TOKEN, config.max_prompt_length),
        longest_answer=one.max_completion_length or config.max_completion_length,
    )


def _writing(
    context: PlanContext, config: AnswerSetsConfig, asked: Sequence[_Asked], *, num_models: int
) -> Work | None:
    if context.model is None:
        return None
    shape, found = context.model.shape, Work()
    profile = stage_profile(context.profile, StageName.ANSWER_SETS)
    for one in asked:
        found += writing_work(
            shape,
            profile,
            context.config.evaluate_policy.rollout_engine,
            count=one.answers,
            batch_size=config.batch_size,
            prompt_tokens=one.prompt_tokens,
            max_tokens=one.longest_answer,
        )
    return found * num_models


def _memory(context: PlanContext, config: AnswerSetsConfig, asked: Sequence[_Asked]) -> tuple[Figure, ...]:
    """Memory of one model, and of its cache for a batch of the longest questions and answers."""
    if context.model is None:
        return ()
    shape, profile = context.model.shape, stage_profile(context.profile, StageName.ANSWER_SETS)
    longest = config.max_prompt_length + max((one.longest_answer for one in asked), default=0)
    return writing_memory(
        shape,
        profile,
        context.config.evaluate_policy.rollout_engine,
        batch_size=config.batch_size,
        tokens=longest,
        name="one model at a time",
    )
