"""answer_sets: the model before fine-tuning, the policy's start model and the policy answer the same standard sets."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from containers.contracts.configs.answer_sets import CHATS, LM_EVAL, AnswerSetsConfig, StandardSet
from containers.contracts.names import MODEL_FOLDER, SAMPLED_FILE, SET_ANSWERS_FILE
from containers.contracts.outcome import Metric
from containers.contracts.registries import STANDARD_SETS
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.spread import Spread, spread_over_gpus
from containers.evals.sets.base import SetItem
from containers.evals.sets.records import MODEL_WORDS, SetModel
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.harness.progress import progress_of
from containers.models.loading import load_causal_model, load_tokenizer, position_limit
from containers.models.release import release
from containers.rollouts.chat_pairs import chat_pairs
from containers.rollouts.generate import Writer, load_writer
from containers.rollouts.harness_tasks import harness_answers
from containers.rollouts.prompt_templates import opening_of
from containers.rollouts.sampled import write_sampled
from containers.rollouts.set_answers import SetAnswer, answers_of, read_answers, write_answers

# By the name of their input.
_MODELS: dict[str, SetModel] = {"before_model": "before", "start_model": "start", "policy": "policy"}


def run(context: StageContext) -> tuple[Metric, ...]:
    """Write `set_answers.parquet`; with chats also `sampled.parquet`, as judges read pairs.

    Answers of a model to a set that an earlier attempt finished are not written again.

    Raises:
        BadDataError: a set has no question that can be used.
        BadConfigError: a model has too few positions for an answer; the harness does not know a task.
    """
    config = context.spec.config
    if not isinstance(config, AnswerSetsConfig):
        raise BadConfigError(f"answer_sets was given the config of {config.stage}.")
    items = {one.name: _drawn_items(context, config, one) for one in config.sets}
    answers: list[SetAnswer] = []
    for role, model in _MODELS.items():
        if context.has_input(role):
            answers += _all_answers(context, config, items, role=role, model=model)
    write_answers(answers, context.output / SET_ANSWERS_FILE)
    chats = [one for one in config.sets if one.kind == CHATS]
    if chats and context.has_input("policy"):
        folder = _folder(context, "policy")
        opening = opening_of(load_tokenizer(folder), thinks=config.enable_thinking)
        pairs = chat_pairs(chats, items, answers, opening=opening)
        write_sampled(pairs, context.output / SAMPLED_FILE)
    return tuple(
        Metric(name=f"{one.name}_items", value=len({answer.item_id for answer in answers if answer.set == one.name}),
               unit="items")
        for one in config.sets
    )  # fmt: skip


def _drawn_items(context: StageContext, config: AnswerSetsConfig, task: StandardSet) -> tuple[SetItem, ...]:
    """Return the items of a set that are answered, in the order of the file; none of the harness's tasks.

    Raises:
        BadDataError: no row can be used; says why.
    """
    if not task.has_rows:
        return ()
    kind = STANDARD_SETS[task.kind]
    rows = kind.read(context.input_path(f"suite_{task.name}"))
    if not rows.items:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rows.left_out.items())
        seen = f" For example {'; '.join(rows.examples)}." if rows.examples else ""
        raise BadDataError(
            f"The set {task.name} has no question that can be used as {kind.title}: {rows.rows_read:,} rows, left out: "
            f"{reasons or 'none'}.{seen} Name the kind that the file belongs to (answer_sets.sets[].kind)."
        )
    if config.max_items is None or config.max_items >= len(rows.items):
        return tuple(rows.items)
    rng = random.Random(context.spec.seed)  # noqa: S311  (a sample, not a secret)
    return tuple(rows.items[place] for place in sorted(rng.sample(range(len(rows.items)), config.max_items)))


def _folder(context: StageContext, role: str) -> Path:
    path = context.input_path(role)
    return path / MODEL_FOLDER if role == "policy" else path


def _all_answers(
    context: StageContext,
    config: AnswerSetsConfig,
    items: dict[str, tuple[SetItem, ...]],
    *,
    role: str,
    model: SetModel,
) -> list[SetAnswer]:
    """Return what one model answers to every set; the model is loaded only if an answer is missing."""
    kept = {one.name: context.checkpoints / f"{model}-{one.name}.parquet" for one in config.sets}
    found = {name: done for name, path in kept.items() if (done := _finished(path)) is not None}
    if missing := [one for one in config.sets if one.name not in found]:
        context.checkpoints.mkdir(parents=True, exist_ok=True)
        folder = _folder(context, role)
        profile = context.spec.profile
        loaded = load_causal_model(folder, dtype=compute_dtype(profile), device=compute_device(profile))
        tokenizer = load_tokenizer(folder, origin=context.input(role).origin)
        spread = spread_over_gpus(load_writer, {"folder": folder, "dtype": compute_dtype(profile)})
        for one in missing:
            found[one.name] = _answers(context, config, one, items[one.name], (loaded, tokenizer, spread), model=model)
            whole = kept[one.name].with_suffix(".new")
            write_answers(found[one.name], whole)
            whole.replace(kept[one.name])
        if spread is not None:
            spread.close()
        release(loaded)
    return [answer for one in config.sets for answer in found[one.name]]


def _finished(path: Path) -> list[SetAnswer] | None:
    """Return the answers that an earlier attempt finished; None: it did not."""
    try:
        return read_answers(path)
    except MissingPrerequisiteError:
        return None


def _answers(
    context: StageContext,
    config: AnswerSetsConfig,
    task: StandardSet,
    items: Sequence[SetItem],
    loaded: tuple[Any, Any, Spread[Writer] | None],
    *,
    model: SetModel,
) -> list[SetAnswer]:
    """Return what the loaded model, with its tokenizer and programs on further GPUs, answers to one set."""
    language_model, tokenizer, spread = loaded
    if task.kind == LM_EVAL:
        folder = context.input_path(f"suite_{task.name}")
        return harness_answers(
            language_model, tokenizer, task, config, folder=folder, name=model, seed=context.spec.seed
        )
    longest, positions = task.max_completion_length or config.max_completion_length, position_limit(language_model)
    if longest >= positions:
        raise BadConfigError(
            f"The set {task.name}: max_completion_length {longest} leaves no room for a question; the model "
            f"({MODEL_WORDS[model]}) has {positions} positions. Lower it."
        )
    total = config.completions_per_item * sum(1 + len(item.further) for item in items)
    answers = answers_of(
        language_model,
        tokenizer,
        items,
        task,
        config,
        name=model,
        seed=context.spec.seed,
        on_batch=progress_of(context, total, unit="answers", text=f"{MODEL_WORDS[model]} answers {task.name}"),
        spread=spread,
    )
    if over_long := sum(bool(answer.problem) for answer in answers):
        context.recorder.note(
            f"{task.name}: {over_long} of {len(answers)} answers of {MODEL_WORDS[model]} are missing: "
            "their questions are too long (answer_sets.max_prompt_length)."
        )
    return answers
