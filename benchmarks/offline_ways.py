"""Ways of a step on given completions to compare, TRL's and ours: trainers, and the tokens that each computes."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from benchmarks.speed_inputs import MAX_LENGTH
from benchmarks.speed_place import CPU
from containers.algorithms.likelihood_objective import Likelihood
from containers.algorithms.offline_step import Example, OfflineStep
from containers.algorithms.offline_trainer import OfflineTrainer
from containers.algorithms.pair_examples import examples_of_pairs, tokenised_pairs
from containers.algorithms.preference_objective import Preference
from containers.algorithms.reference_logps import computed_reference, with_reference
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES
from containers.contracts.configs.parts.training import LoraSettings
from containers.models.loading import apply_lora, peft_config
from containers.models.template_losses import TemplateLosses
from containers.packing.logps import add_logps, causal_of, completion_packs
from containers.token_budgets import CPU_PACK_TOKENS

DEFAULT, PACKING, OURS = "TRL, its defaults but float32", "TRL, its packing", "ours"
_ADAPTERS = LoraSettings(r=16, alpha=32)


def _size_of(way: str) -> int | None:
    """Rows of a batch of TRL; None for all of them."""
    return int(way.split()[1]) if way.startswith("TRL, ") and way.split()[1].isdigit() else None


SETTINGS = tuple(f"TRL, {size} row{'' if size == 1 else 's'} a batch" for size in (1, 2, 4, 8))


def examples_of(kind: str, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> list[Example]:
    """Our examples: pairs, or each completion by itself."""
    tokens = [row for (row,) in tokenised_pairs(tokenizer, rows, losses=TemplateLosses())]
    pairs = examples_of_pairs(tokens, mismatched=False, max_length=MAX_LENGTH)
    if kind == "dpo":
        return pairs
    sides = 2 if kind == "sft-both" else 1
    return [Example(pair.prompt, (ids,)) for pair in pairs for ids in pair.completions[:sides]]


def _shared(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "learning_rate": 1e-5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        **CPU.arguments,
    }


def peers_trainer(kind: str, model: Any, tokenizer: Any, rows: list[dict[str, Any]], folder: Path, *, way: str) -> Any:
    sides = ("chosen", "rejected") if kind == "sft-both" else ("chosen",)
    flat = [{"prompt": row["prompt"], "completion": row[side]} for row in rows for side in sides]
    count = len(rows) if kind == "dpo" else len(flat)
    size = _size_of(way) or count
    settings: dict[str, Any] = {
        **_shared(folder),
        "max_length": MAX_LENGTH,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": count // size,
        "gradient_checkpointing": way == DEFAULT,
    }
    if kind == "dpo":
        return DPOTrainer(
            model=model,
            args=DPOConfig(**settings, precompute_ref_log_probs=way != DEFAULT),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=peft_config(_ADAPTERS, task_type="CAUSAL_LM"),
        )
    if way == PACKING:
        settings |= {
            "per_device_train_batch_size": 1,
            "packing": True,
            "gradient_accumulation_steps": _num_packs(flat, tokenizer),
        }
    data, arguments = Dataset.from_list(flat), SFTConfig(**settings, completion_only_loss=True)
    return SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)


def _num_packs(flat: Sequence[dict[str, Any]], tokenizer: Any) -> int:
    """Rows that TRL's packing makes of these: best fit, decreasing."""
    whole = [tokenizer.apply_chat_template(row["prompt"] + row["completion"], return_dict=True) for row in flat]
    lengths, free = sorted((len(one["input_ids"]) for one in whole), reverse=True), list[int]()
    for length in lengths:
        fitting = [room for room in free if room >= length]
        if fitting:
            free.remove(min(fitting))
            free.append(min(fitting) - length)
        else:
            free.append(MAX_LENGTH - length)
    return len(free)


def our_trainer(kind: str, model: Any, tokenizer: Any, rows: list[dict[str, Any]], folder: Path) -> OfflineTrainer:
    examples = examples_of(kind, tokenizer, rows)
    is_dpo = kind == "dpo"
    transformers.set_seed(TrainingArguments.seed)  # as TRL does, so that the adapters begin alike
    trained = apply_lora(model, _ADAPTERS if is_dpo else None, task_type="CAUSAL_LM")
    add_logps(causal_of(trained), temperature=1.0)
    cut = partial(completion_packs, max_tokens=CPU_PACK_TOKENS, num_together=2 if is_dpo else 1)
    if is_dpo:
        examples = with_reference(examples, computed_reference(trained, examples, cut=cut, dtype=torch.float32))
    objective = Preference(PREFERENCE_LOSSES["sigmoid"]) if is_dpo else Likelihood()
    return OfflineTrainer(
        examples=examples,
        validation=examples[:1],
        families=list(range(len(examples))) if kind != "sft-both" else [place // 2 for place in range(len(examples))],
        make_step=lambda accelerator: OfflineStep(accelerator=accelerator, objective=objective, cut=cut),
        model=trained,
        args=TrainingArguments(
            **_shared(folder), per_device_train_batch_size=len(examples), remove_unused_columns=False
        ),
        processing_class=tokenizer,
    )


def tokens_of(examples: Sequence[Example], way: str) -> int:
    """Tokens that a way computes in a pass of the policy, padding included."""
    if way == OURS:
        alike: dict[tuple[int, ...], list[Example]] = {}
        for example in examples:
            alike.setdefault(tuple(example.prompt), []).append(example)
        return sum(len(prompt) + sum(one.num_tokens - len(prompt) for one in own) for prompt, own in alike.items())
    rows = [[len(one.prompt) + len(ids) for ids in one.completions] for one in examples]
    if way == PACKING:
        return sum(map(sum, rows))
    size = _size_of(way) or len(rows)
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    return sum(sum(map(len, batch)) * max(map(max, batch)) for batch in batches)
