"""Tasks of lm-evaluation-harness on a model that is loaded: it asks, and says by its first metric what is right.

Source: EleutherAI/lm-evaluation-harness 0.4.13, `simple_evaluate` with `log_samples`.
"""

import contextlib
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.formatting import one_line
from containers.harness.errors import BadConfigError
from containers.models.over_gpus import Writer
from containers.rollouts.set_answers import SetAnswer

_MISSING = "is of kind lm_eval, and lm-evaluation-harness is not installed: pip install 'rlhf-flows[sets]'"


@dataclass(frozen=True)
class HarnessTask:
    """A task for one model.

    Attributes:
        folder: has the task's YAML; paths in it start there.
        model: its name in the file of answers.
    """

    task: StandardSet
    config: AnswerSetsConfig
    folder: Path
    model: str
    seed: int


def harness_answers(writer: Writer, tasks: list[HarnessTask]) -> list[list[SetAnswer]]:
    """Return the model's answers to each task's questions, each with its value by the task's first metric.

    The harness takes the first `max_items` questions, and sees the model without a chat template, as published figures
    of base models do, unless the YAML says otherwise.

    Raises:
        BadConfigError: the harness is not installed, does not know the task, or fails; or its first metric gives an
            item no number from 0 to 1.
    """
    return [_answers_to(writer, given) for given in tasks]


def _answers_to(writer: Writer, given: HarnessTask) -> list[SetAnswer]:
    task = given.task
    with warnings.catch_warnings(), _quiet(), contextlib.chdir(given.folder):
        warnings.simplefilter("ignore")
        samples = _samples(writer, task, given.config, seed=given.seed)
    if not samples:
        raise BadConfigError(f"The set {task.name}: its task {task.task} has no question.")
    return [_answer(sample, task, name=given.model) for sample in samples]


def _samples(writer: Writer, task: StandardSet, config: AnswerSetsConfig, *, seed: int) -> list[Mapping[str, Any]]:
    model, tokenizer = writer
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise BadConfigError(f"The set {task.name} {_MISSING} ({error}).") from error
    try:
        manager = TaskManager(include_path=".", include_defaults=False)
        wrapped = HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=config.batch_size,
            max_length=model.config.max_position_embeddings,
        )
        found: Any = simple_evaluate(
            model=wrapped,
            tasks=[task.task],
            task_manager=manager,
            limit=config.max_items,
            bootstrap_iters=0,
            log_samples=True,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    except Exception as error:  # of the harness, of its YAML, of the code beside it
        raise BadConfigError(
            f"The set {task.name}: lm-evaluation-harness cannot run the task {task.task} of its folder: "
            f"{type(error).__name__}: {one_line(str(error), 300)}. Try it with `lm_eval validate --include_path`."
        ) from error
    of_task = found["samples"].get(task.task, [])
    first = of_task[0]["filter"] if of_task else ""
    return [sample for sample in of_task if sample["filter"] == first]


def _answer(sample: Mapping[str, Any], task: StandardSet, *, name: str) -> SetAnswer:
    metric = sample["metrics"][0]
    value = sample[metric]
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise BadConfigError(
            f"The set {task.name}: the first metric of {task.task}, {metric}, gives {value!r} for an item, and no "
            "number from 0 to 1. Put such a metric first in the task's metric_list."
        )
    responses = sample["filtered_resps"]
    text = responses[0] if isinstance(responses[0], str) else f"log-likelihoods: {responses}"
    return SetAnswer(
        set=task.name,
        model=name,
        item_id=str(sample["doc_id"]),
        prompt_id=str(sample["doc_hash"]),
        subset="",
        number=0,
        texts=(text,),
        ended=True,
        num_tokens=0,
        value=float(value),
    )


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep the harness's notes on each task and request out of the log while this is open."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
