"""Time a step of DPO and of fine-tuning: stock TRL beside packs: python -m benchmarks.offline_speed KIND

The same rows, weights (random, Qwen3 of about 25M parameters beside its embeddings) and one optimizer step over all
rows of a draw, turn about, each time in its own process, whose peak memory is measured. All in float32. KIND is

- `dpo`: adapters of rank 16; the reference is precomputed in every way but TRL's defaults, which compute it in the step
- `sft`: every weight, one completion to a prompt
- `sft-both`: every weight, two completions to a prompt

The ways are TRL at its defaults (gradient checkpointing, all rows in one padded batch); TRL at its best on this
machine, without checkpointing: 1, 2, 4 or 8 rows a batch, whichever is the fastest on a draw that is not compared; for
fine-tuning also TRL's packing; and ours.

    --data FOLDER    real rows and the real vocabulary of the shared data, instead of random text
    --made           rows like these, made with a seed, for a vocabulary as wide (`made_data`)
    --write          write the output into its part of benchmarks/offline_speed.md
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM, TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from benchmarks.made_data import folder_of
from benchmarks.provenance import commit
from benchmarks.speed_inputs import MAX_LENGTH, ConversationPair, pairs_of, save_reward_model
from benchmarks.speed_place import CPU
from benchmarks.speed_ratios import (
    CALIBRATION_SEED,
    Runs,
    Tried,
    alternate,
    in_its_own_process,
    peak_bytes,
    ratio,
    results_by_draw,
    tried,
)
from benchmarks.speed_table import (
    add_options,
    add_rows_options,
    check_seeds,
    chosen_rows,
    circumstances,
    spread_line,
    table,
    write_part,
)
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

MODULE = "benchmarks.offline_speed"
DEFAULT, PACKING, OURS = "TRL, its defaults but float32", "TRL, its packing", "ours"
_PAGE = Path(__file__).with_suffix(".md")
_ADAPTERS = LoraSettings(r=16, alpha=32)
_BEST = "TRL at its best"
# Kind → by how many times ours must be faster than each. A row a batch has no padding, so where each prompt has one
# completion, there is little to win on a CPU; it is compared all the same.
_WANTED = {
    "dpo": {DEFAULT: 6.0, _BEST: 1.9},
    "sft": {DEFAULT: 3.0, PACKING: 1.2},
    "sft-both": {DEFAULT: 3.0, PACKING: 2.0},
}
_SAME = 1e-3
_PAIRS = 8


def _size_of(way: str) -> int | None:
    """Rows of a batch of TRL; None for all of them."""
    return int(way.split()[1]) if way.startswith("TRL, ") and way.split()[1].isdigit() else None


SETTINGS = tuple(f"TRL, {size} row{'' if size == 1 else 's'} a batch" for size in (1, 2, 4, 8))


def main() -> int:
    """Print a table; return 1 if losses differ or a wanted ratio is missed."""
    transformers.utils.logging.disable_progress_bar()
    given, measured = _arguments(), commit()
    if given.measure:
        print(json.dumps(_measure(given.kind, given.measure, Path(given.folder))))
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offline-speed-")))
        data = stack.enter_context(folder_of(given.data)) if given.data or given.made else None
        _save_policy(folder, data)
        seeds = [CALIBRATION_SEED, *given.seeds]
        draws = {
            seed: _prepare(folder, given.kind, pairs_of(data, given.pairs, seed=seed), draw=seed) for seed in seeds
        }
        folders = {seed: folder / f"draw-{seed}" for seed in seeds}
        measure = in_its_own_process(MODULE, [given.kind])
        peer = tried(SETTINGS, folder=folders.pop(CALIBRATION_SEED), measure=measure)
        ways = [DEFAULT, peer.best, *([PACKING] if given.kind != "dpo" else []), OURS]
        found = alternate(ways, folders=folders, rounds=given.rounds, measure=measure, once=(DEFAULT,))
    compared = {seed: draws[seed] for seed in given.seeds}
    text = _table(given, compared, found, peer)
    print(text)
    if given.write:
        rows, _ = chosen_rows(given, letters="")
        write_part(
            _PAGE, text, module=MODULE, title="Steps on given completions", heading=f"{given.kind}: {rows.lower()}",
            measured=measured,
        )  # fmt: skip
    names = {_BEST: peer.best}
    fast = all(
        ratio(found, names.get(name, name), ours=OURS).median >= least for name, least in _WANTED[given.kind].items()
    )
    return 0 if _spread(found, peer) <= _SAME and fast else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=list(_WANTED))
    add_rows_options(parser)
    parser.add_argument(
        "--pairs", type=int, default=_PAIRS, help=f"of each draw, all in one step; {_PAIRS} unless given"
    )
    add_options(parser, page=_PAGE)
    parser.add_argument("--measure", choices=[DEFAULT, *SETTINGS, PACKING, OURS], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pairs % _PAIRS:
        parser.error(f"--pairs {given.pairs}: TRL's batches have up to {_PAIRS} rows; give a multiple of it.")
    check_seeds(parser, given.seeds)
    return given


def _save_policy(folder: Path, data: Path | None) -> None:
    save_reward_model(folder / "reward", data=data)
    torch.manual_seed(1)
    Qwen3ForCausalLM(AutoConfig.from_pretrained(folder / "reward")).save_pretrained(folder / "policy")
    AutoTokenizer.from_pretrained(folder / "reward").save_pretrained(folder / "policy")


def _prepare(folder: Path, kind: str, pairs: Sequence[ConversationPair], *, draw: int) -> list[Example]:
    """Write the pairs as messages and as tokens for the processes that measure; return the examples."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    rows = [{"prompt": a[:-1], "chosen": a[-1:], "rejected": b[-1:]} for a, b in pairs]
    place = folder / f"draw-{draw}"
    place.mkdir()
    (place / "rows.json").write_text(json.dumps(rows))
    return _examples(kind, tokenizer, rows)


def _examples(kind: str, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> list[Example]:
    """Our examples: pairs, or each completion by itself."""
    tokens = [row for (row,) in tokenised_pairs(tokenizer, rows, losses=TemplateLosses())]
    pairs = examples_of_pairs(tokens, mismatched=False, max_length=MAX_LENGTH)
    if kind == "dpo":
        return pairs
    sides = 2 if kind == "sft-both" else 1
    return [Example(pair.prompt, (ids,)) for pair in pairs for ids in pair.completions[:sides]]


def _measure(kind: str, way: str, folder: Path) -> dict[str, float]:
    """Return seconds of the step, loss, norm of the gradient, and peak memory beyond the loaded model."""
    rows = json.loads((folder / "rows.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder.parent / "policy")
    model = AutoModelForCausalLM.from_pretrained(folder.parent / "policy", dtype=torch.float32)
    model(input_ids=torch.tensor([[5] * 64]))  # warm up threads and allocator
    trainer: Any = (
        _ours(kind, model, tokenizer, rows, folder)
        if way == OURS
        else _peer(kind, model, tokenizer, rows, folder, way=way)
    )
    before = peak_bytes()
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    (step,) = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return {
        "seconds": seconds,
        "loss": float(step["loss"]),
        "norm": float(step["grad_norm"]),
        "memory": peak_bytes() - before,
    }


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


def _peer(kind: str, model: Any, tokenizer: Any, rows: list[dict[str, Any]], folder: Path, *, way: str) -> Any:
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


def _ours(kind: str, model: Any, tokenizer: Any, rows: list[dict[str, Any]], folder: Path) -> OfflineTrainer:
    examples = _examples(kind, tokenizer, rows)
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


def _tokens(examples: Sequence[Example], way: str) -> int:
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


def _spread(found: Runs, peer: Tried) -> float:
    """How far apart loss and gradient of a draw are, relative to the largest."""
    worst = 0.0
    for runs in results_by_draw(found, peer):
        for figure in ("loss", "norm"):
            values = [run[figure] for run in runs]
            worst = max(worst, (max(values) - min(values)) / max(values))
    return worst


def _table(given: argparse.Namespace, draws: Mapping[int, list[Example]], found: Runs, peer: Tried) -> str:
    _, data = chosen_rows(given, letters="prompts 200 to 2,000 tokens, answers 100 to 600")
    ways = [name for name in found if name != OURS]
    limits = {way: [_tokens(own, way) / _tokens(own, OURS) for own in draws.values()] for way in ways}

    def cells(name: str) -> tuple[list[str], list[str]]:
        return [f"{sum(_tokens(own, name) for own in draws.values()):,}"], []

    lines = [
        f"{given.pairs} pairs a draw, all in one step ({data}), seeds {' '.join(map(str, draws))}; "
        f"{circumstances(given.rounds, draws=len(draws))}",
        f"Loss and norm of the gradient of a draw differ by {_spread(found, peer):.1e} of them at most.",
        "",
        peer.line("TRL without checkpointing"),
        *(
            f"Tokens computed, of ours, by {way}: {', '.join(f'{value:.2f}' for value in sorted(of_way))}."
            for way, of_way in limits.items()
        ),
        "",
        spread_line(len(draws), once=(DEFAULT,) if given.rounds > 1 else ()),
        "",
        *table(found, ours=OURS, before=["tokens computed"], after=[], cells=cells),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
