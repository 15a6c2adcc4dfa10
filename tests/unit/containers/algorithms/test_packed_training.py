"""Packed pairs train the same model as RewardTrainer's padded batches, and every real token is computed once."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification
from trl import RewardConfig

from containers.algorithms import reward_model
from containers.algorithms.reward_model import PackedPairTrainer, PairTrainer, empty_pack, make_packs, packed_scores
from containers.harness.errors import StageError
from containers.packing.attention import packed
from containers.packing.trees import common_prefix, lay_out
from containers.stages.build_base_model import tokenizer_from_texts

pytestmark = pytest.mark.stages

VOCABULARY = 64
PAIRS = 24


def tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_from_texts(["some text to cut"], vocabulary_size=300, max_length=256)


def pairs(*, seed: int = 0, shortest: int = 0) -> list[dict[str, Any]]:
    """Prompts of 0 to 40 tokens with two answers of 1 to 20, which may begin alike."""
    rng = random.Random(seed)  # noqa: S311

    def ids(count: int) -> list[int]:
        return [rng.randrange(5, VOCABULARY) for _ in range(count)]

    def pair() -> dict[str, Any]:
        prompt = ids(rng.randint(shortest, 40))
        chosen, rejected = prompt + ids(rng.randint(1, 20)), prompt + ids(rng.randint(1, 20))
        return {"chosen_ids": chosen, "rejected_ids": rejected, "margin": float(rng.randint(1, 3))}

    return [pair() for _ in range(PAIRS)]


def model(*, lora: bool, pad_token_id: int) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        num_labels=1,
        pad_token_id=pad_token_id,
    )
    plain = Qwen3ForSequenceClassification(config)
    adapters = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", modules_to_save=["score"], task_type="SEQ_CLS"
    )
    return get_peft_model(plain, adapters) if lora else plain


def trainer(
    kind: type[PairTrainer], folder: Path, rows: list[dict[str, Any]], *, lora: bool, margin: bool, **settings: Any
) -> Any:
    cut = tokenizer()
    used = rows if margin else [{key: row[key] for key in ("chosen_ids", "rejected_ids")} for row in rows]
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "max_length": None,
        "gradient_checkpointing": False,
        "center_rewards_coefficient": 0.05,
        "bf16": False,
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    return kind(
        zero_sum_penalty=0.0,
        model=model(lora=lora, pad_token_id=cut.pad_token_id),
        args=RewardConfig(output_dir=str(folder), **(arguments | settings)),
        train_dataset=Dataset.from_list(used),
        eval_dataset=Dataset.from_list(used),
        processing_class=cut,
        **({"pack_tokens": 120} if kind is PackedPairTrainer else {}),
    )


def trained(kind: type[PairTrainer], folder: Path, **settings: Any) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The log and the weights after a few steps."""
    found = trainer(kind, folder, pairs(), **settings)
    with packed(found.model) if kind is PackedPairTrainer else torch.enable_grad():
        found.train()
        found.evaluate()
    return found.state.log_history, dict(found.model.named_parameters())


@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
@pytest.mark.parametrize("margin", [False, True], ids=["plain", "margins"])
def test_the_loss_curve_and_the_weights_are_those_of_padded_batches(tmp_path: Path, lora: bool, margin: bool) -> None:
    padded_log, padded = trained(PairTrainer, tmp_path, lora=lora, margin=margin)
    packed_log, found = trained(PackedPairTrainer, tmp_path, lora=lora, margin=margin)
    shared = ("loss", "grad_norm", "eval_loss", "accuracy", "margin", "eval_accuracy", "eval_margin", "num_tokens")
    for ours, theirs in zip(packed_log, padded_log, strict=True):
        assert {key: ours[key] for key in shared if key in ours} == pytest.approx(
            {key: theirs[key] for key in shared if key in theirs}, rel=1e-3, abs=1e-5
        )
    assert len([entry for entry in packed_log if "loss" in entry]) == 6
    for name, weight in padded.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=2e-4)


def test_in_bfloat16_losses_are_float32_and_those_of_padded_batches_but_for_rounding(tmp_path: Path) -> None:
    padded_log, _ = trained(PairTrainer, tmp_path, lora=True, margin=False, bf16=True)
    packed_log, _ = trained(PackedPairTrainer, tmp_path, lora=True, margin=False, bf16=True)
    for key in ("loss", "eval_loss"):
        ours, theirs = ([entry[key] for entry in log if key in entry] for log in (packed_log, padded_log))
        assert ours == pytest.approx(theirs, rel=0.02)
        # Numbers of 8 bits alone would be a sign that the loss was rounded.
        assert any(torch.tensor(value).bfloat16().item() != value for value in ours)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole model", "LoRA"])
def test_the_gradients_of_a_step_are_those_of_the_padded_step(tmp_path: Path, lora: bool, checkpointing: bool) -> None:
    rows = pairs()

    def gradient(kind: type[PairTrainer]) -> Tensor:
        found = trainer(kind, tmp_path, rows, lora=lora, margin=True)
        if checkpointing:
            found.model.gradient_checkpointing_enable()
        layer = next(part for name, part in found.model.named_modules() if name.endswith("layers.0.mlp"))
        computed: list[int] = []
        layer.register_forward_pre_hook(lambda *_: computed.append(1))
        found.create_optimizer_and_scheduler(1)
        found.current_gradient_accumulation_steps = 1
        batch = found.data_collator([dict(row) for row in rows])
        with packed(found.model) if kind is PackedPairTrainer else torch.enable_grad():
            found.training_step(found.model, batch)
        num_forwards = len(make_packs(batch["pairs"], max_tokens=120)) if kind is PackedPairTrainer else 1
        assert len(computed) == num_forwards * (2 if checkpointing else 1)
        return torch.cat([weight.grad.flatten() for weight in found.model.parameters() if weight.grad is not None])

    padded, found = gradient(PairTrainer), gradient(PackedPairTrainer)
    assert padded.norm() > 0
    assert float((found - padded).norm() / padded.norm()) < 1e-5


def test_no_real_token_is_computed_twice_and_no_pack_is_above_its_budget() -> None:
    rows = [(row["chosen_ids"], row["rejected_ids"]) for row in pairs(shortest=10)]
    packs = make_packs(rows, max_tokens=120)
    computed = sum(pack.input_ids.numel() for pack in packs)
    assert computed == sum(len(a) + len(b) - common_prefix([a, b]) for a, b in rows)
    assert all(pack.input_ids.numel() <= 120 for pack in packs)
    assert sorted(place for pack in packs for place in pack.pairs) == list(range(PAIRS))


def test_a_pair_above_the_budget_is_a_pack_of_its_own() -> None:
    packs = make_packs([([1, 2, 3], [1, 2, 4]), ([5] * 50, [6] * 50)], max_tokens=20)
    assert sorted(pack.input_ids.numel() for pack in packs) == [4, 100]


@pytest.mark.parametrize(
    ("conversations", "trunk"),
    [([[1, 2, 3], [1, 2, 4]], 2), ([[1, 2], [1, 2]], 1), ([[1, 2], [1, 2, 3, 4]], 1), ([[1], [2]], 0)],
    ids=["differ", "equal", "one begins the other", "share nothing"],
)
def test_each_branch_keeps_a_token_of_its_own(conversations: list[list[int]], trunk: int) -> None:
    row = lay_out([conversations])
    tokens, positions, (tree,) = row.input_ids[0].tolist(), row.position_ids[0].tolist(), row.trees
    assert tree.trunk == trunk
    assert [tokens[last] for last in tree.lasts] == [conversation[-1] for conversation in conversations]
    assert [positions[last] for last in tree.lasts] == [len(conversation) - 1 for conversation in conversations]


def test_an_empty_pack_costs_nothing_and_moves_no_weight_whatever_its_scores_are(tmp_path: Path) -> None:
    """A model whose head is still zero scores its dummy pair as 0."""
    made = trainer(PackedPairTrainer, tmp_path, pairs(), lora=False, margin=False)
    scores = torch.zeros(1, 2, requires_grad=True)
    loss = made._pack_loss(scores, {}, empty_pack(3))
    loss.backward()
    assert loss.item() == 0.0
    assert scores.grad is not None and scores.grad.tolist() == [[0.0, 0.0]]


def test_accumulated_batches_give_the_losses_and_weights_of_padded_ones(tmp_path: Path) -> None:
    """One plain step: the weights differ by the gradient. Adam's would be its sign, which is noise near zero."""
    plain = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
    settings: dict[str, Any] = {"lora": True, "margin": True, "gradient_accumulation_steps": 3, **plain}
    padded_log, padded = trained(PairTrainer, tmp_path, **settings)
    packed_log, found = trained(PackedPairTrainer, tmp_path, **settings)
    for key in ("loss", "grad_norm"):
        ours, theirs = ([entry[key] for entry in log if key in entry] for log in (packed_log, padded_log))
        assert ours == pytest.approx(theirs, rel=1e-3)
    for name, weight in padded.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("apart", "factor", "ends"), [(0.0015, 1, True), (0.0005, 1, False), (0.005, 50, False), (0.05, 1, True)]
)
def test_a_loss_that_is_not_the_one_of_whole_batches_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: float, factor: float, ends: bool
) -> None:
    """The packs' losses are summed in another order, which is less than a thousandth of a large loss, too."""
    real, whole = PackedPairTrainer._pack_loss, PackedPairTrainer._loss_of
    monkeypatch.setattr(PackedPairTrainer, "_pack_loss", lambda *arguments: apart + factor * real(*arguments))

    def loss_of(*given: Any, **named: Any) -> Any:
        found = whole(*given, **named)
        return factor * found if isinstance(found, Tensor) else found

    monkeypatch.setattr(PackedPairTrainer, "_loss_of", loss_of)
    with pytest.raises(StageError, match="is not RewardTrainer's") if ends else nullcontext():
        trained(PackedPairTrainer, tmp_path, lora=True, margin=False, max_steps=1)


def test_ranks_that_divide_a_model_see_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    class Divided(torch.nn.Module):
        """As FSDP's wrapper, it gives what the model gives."""

        def __init__(self, whole: Any) -> None:
            super().__init__()
            self.whole = whole

        def forward(self, **given: Any) -> Any:
            return self.whole(**given)

    monkeypatch.setattr(reward_model, "FSDPModule", Divided)
    whole = model(lora=False, pad_token_id=0)
    (pack,) = make_packs([([1, 2, 3], [1, 2, 4])], max_tokens=20)
    with packed(whole), torch.no_grad():
        scores = packed_scores(whole, pack, whole)
        assert torch.equal(packed_scores(Divided(whole), pack, whole), scores)
    assert scores.abs().min() > 0


def test_ranks_exchange_gradients_once_a_batch_with_its_last_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trainer(PackedPairTrainer, tmp_path, pairs(), lora=True, margin=False)
    found.create_optimizer_and_scheduler(1)
    found.current_gradient_accumulation_steps = 1
    batch = found.data_collator([dict(row) for row in pairs()])
    exchanged = backwards(found, monkeypatch)
    with packed(found.model):
        found.training_step(found.model, batch)
    num_packs = len(make_packs(batch["pairs"], max_tokens=120))
    assert num_packs > 2
    assert exchanged == [False] * (num_packs - 1) + [True]


def backwards(found: Any, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each backward of a trainer, whether ranks would exchange gradients with it."""
    exchanges, seen = [True], []
    real = found.accelerator.backward

    @contextmanager
    def no_sync(model: Any) -> Iterator[None]:
        exchanges.append(False)
        yield
        exchanges.pop()

    def backward(loss: Tensor) -> None:
        seen.append(exchanges[-1])
        real(loss)

    monkeypatch.setattr(found.accelerator, "no_sync", no_sync)
    monkeypatch.setattr(found.accelerator, "backward", backward)
    return seen
