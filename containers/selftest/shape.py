"""Models of a given shape with random weights, made where they are used; in files for what reads them from files."""

import gc
import shutil
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from containers.contracts.configs.selftest import SelftestRequest
from containers.contracts.spec import StageInput
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import is_first_rank, of_all_ranks, patient_group
from containers.formatting import size
from containers.harness.context import StageContext
from containers.models.weights import write_weights
from containers.selftest.probe import NotHereError
from containers.stages.build_base_model import default_chat_template, tokenizer_from_texts

_SMALLEST_VOCABULARY = 260
_START_MODEL, _OF_THE_DISK = "start_model", 0.9
_TEXT = "The machine multiplies, adds and remembers."


def model_config(request: SelftestRequest, **changes: Any) -> Any:
    """Return transformers' configuration of the run's model.

    Args:
        **changes: other values of its keys.

    Raises:
        NotHereError: the shape is not known here.
    """
    if not request.model:
        raise NotHereError(request.model_note or "the shape of the run's model is not known here")
    values = {**request.model, **changes}
    values.pop("dtype", None)
    return AutoConfig.for_model(values.pop("model_type"), pad_token_id=0, **values)


def causal_model(config: Any, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a language model, the same on each rank."""
    set_seed(0)
    with device:
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    made.generation_config = GenerationConfig(pad_token_id=0)
    return made.eval()


def reward_model(config: Any, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a reward model, the same on each rank."""
    set_seed(0)
    config.num_labels = 1
    with device:
        made: PreTrainedModel = AutoModelForSequenceClassification.from_config(
            config, dtype=dtype, trust_remote_code=False
        )
    return made.eval()


def any_tokenizer(*, max_length: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer of single bytes: trainers need one, although their examples are tokens already."""
    tokenizer = tokenizer_from_texts([_TEXT], vocabulary_size=_SMALLEST_VOCABULARY, max_length=max_length)
    tokenizer.chat_template = default_chat_template()
    return tokenizer


def drawn(count: int, *, seed: int, words: int) -> list[int]:
    """Return so many token ids, none of them the padding's."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, words, (count,), generator=generator).tolist()


def with_made_files(context: StageContext, request: SelftestRequest) -> StageContext:
    """Return the context of a stage whose start model is a language model of the shape, in files; all ranks call it."""
    made = None
    if is_first_rank():
        profile = context.spec.profile
        made = causal_model(model_config(request), dtype=compute_dtype(profile), device=compute_device(profile))
    found = with_files_of(made, context)
    del made
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def with_files_of(model: PreTrainedModel | None, context: StageContext, *, copies: int = 1) -> StageContext:
    """Return the context of a stage whose start model is this one, written to the work folder; all ranks call it.

    Args:
        model: of the first rank; it writes.
        copies: how many of its size the disk shall hold.

    Raises:
        NotHereError: on every rank, if the disk has no room for it.
    """
    folder, problem, dtype = context.work / _START_MODEL, "", compute_dtype(context.spec.profile)
    if is_first_rank() and model is not None:
        shutil.rmtree(folder, ignore_errors=True)
        needed = copies * sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
        free = shutil.disk_usage(context.work).free
        if needed > _OF_THE_DISK * free:
            problem = f"the disk of run.store_dir has {size(free)} left, and the model in files takes {size(needed)}"
        else:
            model.config.architectures = [type(model).__name__]
            write_weights(model, folder, dtype=dtype, writes=True)
    if problem := next(filter(None, of_all_ranks(problem, group=patient_group())), ""):
        raise NotHereError(problem)
    made = StageInput(name=_START_MODEL, path=str(folder), digest="sha256:" + "0" * 64)
    inputs = (*(one for one in context.spec.inputs if one.name != _START_MODEL), made)
    return replace(context, spec=context.spec.model_copy(update={"inputs": inputs}))
