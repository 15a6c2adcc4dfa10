"""A step on given completions has the gradient of TRL's own trainers, however it is cut: fine-tuning and each loss on
pairs. The rule for denominators, which the cuts check: they count examples and tokens of the whole step.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from containers.algorithms.likelihood_objective import Likelihood
from containers.algorithms.offline_step import Example, Objective
from containers.algorithms.preference_objective import Preference
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES
from tests.unit.containers.algorithms.offline_cases import (
    BETA,
    cuts,
    examples,
    gradient_of,
    lora,
    ours,
    parts_of,
    policy_of,
    without_mismatched,
)
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = [pytest.mark.stages, pytest.mark.filterwarnings("ignore")]

TOLERANCE = 1e-5


COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": False,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "max_length": None,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal_model(tmp_path_factory.mktemp("start"), scale=0.1, seed=3)


def adapted(model: Any, start: Path) -> Any:
    """Give a model that TRL has wrapped the adapters of `policy_of`."""
    own = {name: weight for name, weight in policy_of(start).named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.copy_(own[name])
    return model.train()


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def compare(start: Path, objective: Objective, rows: Sequence[Example], *, loss: float, gradient: Tensor) -> None:
    assert gradient.norm() > 1e-4
    for name, cut in cuts(objective.num_completions).items():
        found, own, _figures = ours(start, objective, rows, cut=cut)
        assert found == pytest.approx(loss, rel=1e-5, abs=1e-7), name
        assert apart(own, gradient) < TOLERANCE, name


def trained_by(peer: Any, start: Path, loss: Callable[[Any], Tensor]) -> tuple[float, Tensor]:
    """Loss and gradient of a TRL trainer whose model has our adapters."""
    model = adapted(peer.model, start)
    model.zero_grad()
    found = loss(model)
    found.backward()
    return float(found.detach()), gradient_of(model)


def text_pairs() -> Dataset:
    """Rows with which a TRL trainer can be built; the batches compared are of tokens."""
    return Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2)


def built(start: Path, kind: Any, config: Any, data: Dataset) -> Any:
    return kind(
        model=AutoModelForCausalLM.from_pretrained(start),
        args=config,
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(start),
        peft_config=lora(),
    )


def test_the_gradient_of_fine_tuning_is_trls_however_the_step_is_cut(start: Path, tmp_path: Path) -> None:
    rows = without_mismatched(examples(1))
    data = [
        {
            "input_ids": [*row.prompt, *row.completions[0]],
            "completion_mask": [0] * len(row.prompt) + [1] * len(row.completions[0]),
        }
        for row in rows
    ]
    arguments = COMMON | {"max_length": 4096}
    config = SFTConfig(output_dir=str(tmp_path), completion_only_loss=True, **arguments)
    peer = built(start, SFTTrainer, config, Dataset.from_list(data))
    (batch,) = list(peer.get_train_dataloader())
    num_tokens = torch.tensor(sum(len(row.completions[0]) for row in rows))
    loss, gradient = trained_by(
        peer, start, lambda model: peer.compute_loss(model, dict(batch), num_items_in_batch=num_tokens)
    )
    compare(start, Likelihood(), rows, loss=loss, gradient=gradient)


def test_the_gradient_of_conversations_with_several_answers_is_trls_however_the_step_is_cut(
    start: Path, tmp_path: Path
) -> None:
    """Turns of the user between answers are read and not learnt; two conversations begin with the same prompt."""
    dice = random.Random(3)  # noqa: S311
    rows = []
    for place, row in enumerate(without_mismatched(examples(1))):
        (ids,) = row.completions
        counted = [dice.random() < 0.5 for _ in ids[:-1]] + [True]
        rows.append(row if place == 4 else replace(row, counted=(counted,)))
    data = [
        {
            "input_ids": [*row.prompt, *row.completions[0]],
            "completion_mask": [0] * len(row.prompt)
            + ([*map(int, row.counted[0])] if row.counted else [1] * len(row.completions[0])),
        }
        for row in rows
    ]
    config = SFTConfig(output_dir=str(tmp_path), completion_only_loss=True, **COMMON | {"max_length": 4096})
    peer = built(start, SFTTrainer, config, Dataset.from_list(data))
    (batch,) = list(peer.get_train_dataloader())
    num_tokens = torch.tensor(sum(row.num_counted(0) for row in rows))
    assert 0 < num_tokens < sum(len(row.completions[0]) for row in rows)
    loss, gradient = trained_by(
        peer, start, lambda model: peer.compute_loss(model, dict(batch), num_items_in_batch=num_tokens)
    )
    compare(start, Likelihood(), rows, loss=loss, gradient=gradient)


DPO: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sigmoid": ({}, {"loss_type": ["sigmoid"]}),
    "sigmoid per token": ({"length_normalised": True}, {"loss_type": ["sigmoid_norm"]}),
    "robust": ({"label_smoothing": 0.2}, {"loss_type": ["robust"], "label_smoothing": 0.2}),
    "hinge": ({}, {"loss_type": ["hinge"]}),
    "ipo": ({}, {"loss_type": ["ipo"]}),
    "sft": ({}, {"loss_type": ["sft"]}),
    "sigmoid and likelihood": (
        {"sft_weight": 0.7},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7]},
    ),
}


def token_pairs(rows: Sequence[Example]) -> list[dict[str, list[int]]]:
    return [
        {"prompt_ids": row.prompt, "chosen_ids": row.completions[0], "rejected_ids": row.completions[1]} for row in rows
    ]


@pytest.mark.parametrize("name", DPO)
def test_the_gradient_of_a_loss_on_pairs_is_that_of_trls_dpo_trainer(start: Path, tmp_path: Path, name: str) -> None:
    rows, (changes, settings) = without_mismatched(examples(2)), DPO[name]
    config = DPOConfig(output_dir=str(tmp_path), beta=BETA, **COMMON, **settings)
    peer = built(start, DPOTrainer, config, text_pairs())
    batch = peer.data_collator(token_pairs(rows))
    loss, gradient = trained_by(peer, start, lambda model: peer._compute_loss(model, batch, False))
    compare(start, Preference(parts_of(name, changes)), rows, loss=loss, gradient=gradient)


def trls_batch(rows: Sequence[Example], pad: int) -> dict[str, Tensor]:
    """The batch of TRL's CPO and ORPO trainers."""
    batch: dict[str, Tensor] = {}
    for side, name in enumerate(("chosen", "rejected")):
        wholes = [[*row.prompt, *row.completions[side]] for row in rows]
        width = max(map(len, wholes))
        batch[f"{name}_input_ids"] = torch.tensor([ids + [pad] * (width - len(ids)) for ids in wholes])
        batch[f"{name}_attention_mask"] = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in wholes])
        batch[f"{name}_labels"] = torch.tensor(
            [
                [-100] * len(row.prompt) + row.completions[side] + [-100] * (width - len(ids))
                for row, ids in zip(rows, wholes, strict=True)
            ]
        )
    return batch


def test_the_gradient_of_simpo_is_that_of_trls_cpo_trainer(start: Path, tmp_path: Path) -> None:
    rows = without_mismatched(examples(2))
    for changes, settings in (
        ({}, {"cpo_alpha": 0.0}),
        ({"sft_weight": 0.3, "label_smoothing": 0.1}, {"cpo_alpha": 0.3, "label_smoothing": 0.1}),
    ):
        config = CPOConfig(
            output_dir=str(tmp_path),
            beta=2.0,
            simpo_gamma=1.0,
            loss_type="simpo",
            **COMMON | {"max_length": 512},
            **settings,
        )
        peer = built(start, CPOTrainer, config, text_pairs())
        batch = trls_batch(rows, peer.pad_token_id)
        loss, gradient = trained_by(peer, start, lambda model: peer.get_batch_loss_metrics(model, batch)[0])  # noqa: B023
        parts = PREFERENCE_LOSSES["simpo"].model_copy(update=changes)
        compare(start, Preference(parts), rows, loss=loss, gradient=gradient)


def test_the_gradient_of_orpo_is_that_of_trls_orpo_trainer(start: Path, tmp_path: Path) -> None:
    """TRL counts prompts into the likelihood, so the prompts here have one token, which nothing predicts."""
    rows = without_mismatched(examples(2, longest_prompt=1))
    config = ORPOConfig(output_dir=str(tmp_path), beta=BETA, **COMMON | {"max_length": 512})
    peer = built(start, ORPOTrainer, config, text_pairs())
    batch = trls_batch(rows, 0)
    loss, gradient = trained_by(peer, start, lambda model: peer.get_batch_loss_metrics(model, batch)[0])
    compare(start, Preference(parts_of("orpo", {})), rows, loss=loss, gradient=gradient)


@pytest.mark.parametrize("is_above_zero", [True, False])
def test_the_gradient_of_kto_is_that_of_trls_trainer_with_the_baseline_of_the_whole_step(
    start: Path, tmp_path: Path, is_above_zero: bool
) -> None:
    """The mean log ratio of the mismatched completions is negative here, unless they are those that became likely."""
    rows = examples(2)
    if is_above_zero:
        rows = [replace(row, mismatched=likelier(start, row)) for row in rows]
    config = KTOConfig(output_dir=str(tmp_path), beta=0.1, loss_type="kto", **COMMON)
    unpaired = Dataset.from_list([{"prompt": "a", "completion": "b", "label": label} for label in (True, False)] * 2)
    peer = built(start, KTOTrainer, config, unpaired)
    batch = peer.data_collator(
        [
            {
                "prompt_ids": row.prompt,
                "completion_ids": row.completions[side],
                "KL_completion_ids": row.mismatched[side],
                "label": side == 0,
            }
            for row in rows
            for side in (0, 1)
        ]
    )
    loss, gradient = trained_by(peer, start, lambda model: peer._compute_loss(model, batch, False))
    kl = peer._metrics["train"]["kl"][-1]
    assert (kl > 0) is is_above_zero
    _loss, _gradient, figures = ours(start, Preference(PREFERENCE_LOSSES["kto"]), rows, cut=cuts(2)["2 packs"])
    assert figures["kl"] == pytest.approx(kl, rel=1e-4)
    compare(start, Preference(PREFERENCE_LOSSES["kto"]), rows, loss=loss, gradient=gradient)


def likelier(start: Path, row: Example) -> tuple[list[int], ...]:
    """Completions of the tokens that the adapters make likelier than the reference finds them."""
    model = policy_of(start)
    ids = list(row.prompt)
    with torch.no_grad():
        for _ in range(12):
            given = torch.tensor([ids])
            now = model(given).logits[0, -1].log_softmax(-1)
            with model.disable_adapter():
                before = model(given).logits[0, -1].log_softmax(-1)
            ids.append(int((now - before).argmax()))
    return (ids[len(row.prompt) :], ids[len(row.prompt) : -3])


def test_the_figures_of_pairs_are_trls(start: Path, tmp_path: Path) -> None:
    rows = without_mismatched(examples(2))
    config = DPOConfig(output_dir=str(tmp_path), beta=BETA, loss_type=["sigmoid"], **COMMON)
    peer = built(start, DPOTrainer, config, text_pairs())
    trained_by(peer, start, lambda model: peer._compute_loss(model, peer.data_collator(token_pairs(rows)), False))
    theirs = {name: values[-1] for name, values in peer._metrics["train"].items()}
    _loss, _gradient, found = ours(start, Preference(parts_of("sigmoid", {})), rows, cut=cuts(2)["2 packs"])
    assert found["accuracy"] == pytest.approx(theirs["rewards/accuracies"])
    assert found["margin"] == pytest.approx(theirs["rewards/margins"], rel=1e-4)
    assert BETA * found["chosen_log_ratio"] == pytest.approx(theirs["rewards/chosen"], rel=1e-4)
    assert BETA * found["rejected_log_ratio"] == pytest.approx(theirs["rewards/rejected"], rel=1e-4)
    assert found["chosen_logps"] == pytest.approx(theirs["logps/chosen"], rel=1e-5)
    assert found["rejected_logps"] == pytest.approx(theirs["logps/rejected"], rel=1e-5)
    assert found["entropy"] == pytest.approx(theirs["entropy"], rel=1e-4)
