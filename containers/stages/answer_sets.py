"""answer_sets: the model before fine-tuning, the policy's start model and the policy answer the same standard sets."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForCausalLM

from containers.contracts.configs.answer_sets import CHATS, LM_EVAL, AnswerSetsConfig, StandardSet
from containers.contracts.names import MODEL_FOLDER, SAMPLED_FILE, SET_ANSWERS_FILE
from containers.contracts.outcome import Metric
from containers.contracts.registries import STANDARD_SETS
from containers.distributed.spread import Spread
from containers.evals.sets.base import SetItem
from containers.evals.sets.records import MODEL_WORDS, SetModel
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.harness.progress import progress_of
from containers.models.loading import load_tokenizer, position_limit
from containers.models.over_gpus import Writer, writer_over_gpus
from containers.models.release import release
from containers.models.tensor_parallel import shell
from containers.rollouts.chat_pairs import chat_pairs
from containers.rollouts.harness_tasks import HarnessTask, harness_answers
from containers.rollouts.prompt_templates import opening_of
from containers.rollouts.sampled import write_sampled
from containers.rollouts.set_answers import SetAnswer, answers_of, read_answers, write_answers
from containers.rollouts.vllm_server import vllm_version, vllm_writers

# A model with its tokenizer, programs that hold it too, and how many of a number of prompts are a batch.
_Loaded: TypeAlias = tuple[Writer, Spread[Writer] | None, Callable[[int], int]]
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
        tokenizer = load_tokenizer(folder, origin=context.input(role).origin)
        for load, sets in _writers(context, config, folder, tokenizer, missing):
            with load as loaded:
                for one in sets:
                    found[one.name] = _answers(context, config, one, items[one.name], loaded, model=model)
                    whole = kept[one.name].with_suffix(".new")
                    write_answers(found[one.name], whole)
                    whole.replace(kept[one.name])
    return [answer for one in config.sets for answer in found[one.name]]


def _writers(
    context: StageContext, config: AnswerSetsConfig, folder: Path, tokenizer: Any, missing: Sequence[StandardSet]
) -> Iterator[tuple[AbstractContextManager[_Loaded], list[StandardSet]]]:
    """Yield a model, to be loaded, with the sets that it answers; tasks of the harness are never vLLM's."""
    of_vllm = [one for one in missing if config.rollout_engine == "vllm" and one.kind != LM_EVAL]
    if of_vllm:
        positions = position_limit(shell(AutoModelForCausalLM, folder, dtype=torch.bfloat16))
        longest = max(_longest_answer(config, one, positions=positions) for one in of_vllm)
        yield _by_vllm(context, folder, longest=min(config.max_prompt_length + longest, positions)), of_vllm
    if others := [one for one in missing if one not in of_vllm]:
        yield _by_transformers(context, config, folder, tokenizer), others


def _longest_answer(config: AnswerSetsConfig, task: StandardSet, *, positions: int) -> int:
    """Return the tokens of an answer to a set.

    Raises:
        BadConfigError: the model has no position left for a question.
    """
    longest = task.max_completion_length or config.max_completion_length
    if longest >= positions:
        raise BadConfigError(
            f"The set {task.name}: max_completion_length {longest} leaves no room for a question; the model has "
            f"{positions} positions. Lower it."
        )
    return longest


@contextmanager
def _by_vllm(context: StageContext, folder: Path, *, longest: int) -> Iterator[_Loaded]:
    profile, seed = context.spec.profile, context.spec.seed
    with vllm_writers(folder, profile, longest=longest, seed=seed) as (writer, spread, count):
        context.recorder.note(f"Answers are written by vLLM {vllm_version()}.")
        yield writer, spread, lambda number: math.ceil(number / count)


@contextmanager
def _by_transformers(
    context: StageContext, config: AnswerSetsConfig, folder: Path, tokenizer: Any
) -> Iterator[_Loaded]:
    writer, spread = writer_over_gpus(folder, context.spec.profile, tokenizer)
    try:
        yield writer, spread, lambda number: config.batch_size
    finally:
        if spread is not None:
            spread.close()
        release(writer[0])


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
    loaded: _Loaded,
    *,
    model: SetModel,
) -> list[SetAnswer]:
    """Return what the loaded model, with its tokenizer and programs on further GPUs, answers to one set."""
    writer, spread, batch_size = loaded
    language_model, tokenizer = writer
    if task.kind == LM_EVAL:
        folder = context.input_path(f"suite_{task.name}")
        given = HarnessTask(task, config, folder, model, context.spec.seed)
        if spread is not None and spread.is_all:
            return spread.map(writer, harness_answers, [given], sizes=[1])[0]
        return harness_answers(writer, [given])[0]
    _longest_answer(config, task, positions=position_limit(language_model))
    total = config.completions_per_item * sum(1 + len(item.further) for item in items)
    answers = answers_of(
        language_model,
        tokenizer,
        items,
        task,
        config,
        batch_size=batch_size,
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
