"""compute_reference: log-probabilities of the pairs under the model from which train_dpo starts, each rank a share."""

import time
from collections.abc import Sequence
from functools import partial

from containers.algorithms.offline_packing import plan_offline_packing
from containers.algorithms.offline_step import Example
from containers.algorithms.pair_examples import PAIR_FIELDS, examples_of_pairs, tokenised_pairs
from containers.algorithms.reference_logps import computed_reference, reference_key, write_reference
from containers.contracts.configs.compute_reference import ComputeReferenceConfig
from containers.contracts.names import REFERENCE_FILE
from containers.contracts.outcome import Metric
from containers.distributed.devices import compute_device, compute_dtype
from containers.distributed.ranks import join_ranks, leave_ranks, spread_over_ranks
from containers.harness.context import StageContext
from containers.harness.errors import BadConfigError
from containers.models.loading import num_embedding_rows
from containers.packing.kernel import try_kernels
from containers.packing.logps import add_logps
from containers.training.examples import read_training_examples
from containers.training.records import peak_memory_bytes
from containers.training.start_model import load_start_model, load_start_tokenizer


def run(context: StageContext) -> tuple[Metric, ...]:
    """Compute both splits with the packs and the kernel of training, and write the values; return their means.

    Raises:
        BadDataError: no pair fits, or kto finds one prompt only.
        BadConfigError: the chat template refuses a pair.
    """
    config = context.spec.config
    if not isinstance(config, ComputeReferenceConfig):
        raise BadConfigError(f"compute_reference was given the configuration of {config.stage}.")
    join_ranks(context)
    try_kernels(compute_device(context.spec.profile))
    tokenizer = load_start_tokenizer(context, chat_template=config.chat_template, section="train_dpo")
    found = read_training_examples(
        context,
        config,
        tokenizer,
        tokenised=partial(tokenised_pairs, tokenizer),
        token_fields=PAIR_FIELDS,
        num_rows=num_embedding_rows(context.input_path("start_model")),
        unit="pairs",
        section="train_dpo",
    )
    splits = [
        examples_of_pairs(split.kept, mismatched=config.mismatched, max_length=config.max_length)
        for split in (found.train, found.validation)
    ]
    dtype = compute_dtype(context.spec.profile)
    model = load_start_model(context, tokenizer, whole=config.whole_model, quantization=config.quantization)
    cut = plan_offline_packing(context, config, model, splits[0], what="Pairs")
    add_logps(model, temperature=1.0)
    started_at_s = time.monotonic()
    values = [
        spread_over_ranks(
            split, lambda own: computed_reference(model, own, cut=cut, dtype=dtype, recorder=context.recorder)
        )
        for split in splits
    ]
    seconds = time.monotonic() - started_at_s
    key = reference_key(context, splits, dtype=dtype, whole_model=config.whole_model, quantization=config.quantization)
    if leave_ranks():
        write_reference(context.output / REFERENCE_FILE, values, key=key)
    return _metrics(splits, values, seconds=seconds)


def _metrics(
    splits: Sequence[Sequence[Example]], values: Sequence[Sequence[tuple[float, ...]]], *, seconds: float
) -> tuple[Metric, ...]:
    """Numbers of pairs, the reference's mean log-probability of a token on each side, and the speed."""
    train, held_out = map(len, splits)
    examples = [example for split in splits for example in split]
    rows = [row for split in values for row in split]
    means = {
        side: sum(row[place] for row in rows) / sum(len(example.completions[place]) for example in examples)
        for place, side in enumerate(("chosen", "rejected"))
    }
    prefers_chosen = sum(row[0] > row[1] for row in rows) / len(rows)
    tokens = sum(example.num_tokens for example in examples)
    return (
        Metric(name="train_pairs", value=train, unit="pairs"),
        Metric(name="validation_pairs", value=held_out, unit="pairs"),
        *(
            Metric(name=f"{side}_logp_of_a_token", value=value, unit="nats", count=len(rows))
            for side, value in means.items()
        ),
        Metric(name="chosen_is_likelier", value=prefers_chosen, unit="fraction", count=len(rows)),
        Metric(name="tokens_per_second", value=tokens / max(seconds, 1e-9), unit="tokens/s"),
        Metric(name="peak_memory", value=peak_memory_bytes(), unit="bytes"),
    )
