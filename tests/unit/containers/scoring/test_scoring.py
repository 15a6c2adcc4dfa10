"""One scorer serves training, evaluation and the policy: it must give what plain transformers gives, or refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen3ForSequenceClassification
from trl import RewardConfig, RewardTrainer

from containers.contracts.configs.parts.training import LoraSettings
from containers.harness.errors import BadDataError, DivergedError, MissingPrerequisiteError
from containers.models.loading import apply_lora, load_new_reward_model, save_adapter, save_merged
from containers.scoring.rounding import allowed_difference
from containers.scoring.scorer import RewardScorer, score_head_sha256
from containers.training.examples import as_dataset
from tests.unit.factories.spec_factory import colour_rows
from tests.unit.factories.tiny_policy import save_causal_model, tiny_config, tiny_tokenizer

pytestmark = pytest.mark.stages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward_model")
    _save(path)
    return path


def _save(folder: Path, **tensors: torch.Tensor | None) -> None:
    """A reward model with random weights; `tensors` replaces or, with None, removes some of them."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(3)
    config = tiny_config(tokenizer, initializer_range=0.2, num_labels=1)
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if tensors:
        weights: dict[str, Any] = {**load_file(folder / "model.safetensors"), **tensors}
        kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _scorer(folder: Path, *, max_length: int = 256, batch_size: int = 8) -> RewardScorer:
    return RewardScorer.load(folder, device="cpu", dtype=torch.float32, max_length=max_length, batch_size=batch_size)


def _conversations(count: int = 7) -> list[list[dict[str, str]]]:
    rows = colour_rows(count)
    return [row["prompt"] + row[side] for row in rows for side in ("chosen", "rejected")]


def test_scores_are_those_of_ten_lines_of_plain_transformers(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = []
    for conversation in _conversations():
        inputs = tokenizer.apply_chat_template(conversation, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            plain.append(model(**inputs).logits[0, 0].item())
    assert _scorer(folder).score(_conversations()) == pytest.approx(plain, abs=1e-5)
    assert len({round(score, 3) for score in plain}) > 5


@pytest.mark.parametrize("batch_size", [1, 3, 14])
def test_a_score_depends_neither_on_its_batch_nor_on_its_place(folder: Path, batch_size: int) -> None:
    conversations = _conversations()
    wanted = _scorer(folder, batch_size=4).score(conversations)
    found = _scorer(folder, batch_size=batch_size).score(conversations[::-1])[::-1]
    assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 40, 100, 10_000])
def test_a_token_budget_changes_no_score(folder: Path, batch_tokens: int) -> None:
    scorer = RewardScorer.load(
        folder, device="cpu", dtype=torch.float32, max_length=256, batch_size=64, batch_tokens=batch_tokens
    )
    assert scorer.score(_conversations()) == pytest.approx(_scorer(folder).score(_conversations()), abs=1e-5)


def test_many_conversations_get_the_tokens_that_each_gets_alone(folder: Path) -> None:
    scorer = _scorer(folder)
    assert scorer.tokenize_all(_conversations()) == [scorer.tokenize(item) for item in _conversations()]
    assert scorer.tokenize_all([]) == []


def test_tokens_are_exactly_those_that_the_reward_trainer_trains_on(folder: Path, tmp_path: Path) -> None:
    rows = colour_rows(6)
    trainer = RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(folder),
        args=RewardConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_length=256),
        train_dataset=as_dataset(rows, ["prompt", "chosen", "rejected"]),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    scorer = _scorer(folder)
    for row, trained in zip(rows, trainer.train_dataset, strict=True):
        assert scorer.tokenize(row["prompt"] + row["chosen"]) == trained["chosen_ids"]
        assert scorer.tokenize(row["prompt"] + row["rejected"]) == trained["rejected_ids"]


def test_scores_are_those_that_the_reward_trainer_computes_its_loss_from(folder: Path, tmp_path: Path) -> None:
    rows = colour_rows(5)
    trainer = RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(folder),
        args=RewardConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_length=256),
        train_dataset=as_dataset(rows, ["prompt", "chosen", "rejected"]),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    batch = trainer.data_collator([trainer.train_dataset[number] for number in range(5)])
    with torch.no_grad():
        trained = trainer.model.eval()(**batch).logits.squeeze(-1).tolist()
    sides = [row["prompt"] + row["chosen"] for row in rows] + [row["prompt"] + row["rejected"] for row in rows]
    assert _scorer(folder).score(sides) == pytest.approx(trained, abs=1e-5)


def test_pad_tokens_at_the_end_do_not_change_a_score(folder: Path) -> None:
    scorer = _scorer(folder)
    tokens = scorer.tokenize(_conversations(1)[0])
    pad = scorer.tokenizer.pad_token_id
    plain, padded = scorer.score_tokens([tokens, [*tokens, pad, pad]])
    assert plain == pytest.approx(padded, abs=1e-5)


def test_a_long_conversation_is_reported_and_never_cut(folder: Path) -> None:
    conversation = _conversations(1)[0]
    num_tokens = len(_scorer(folder).tokenize(conversation))
    assert _scorer(folder, max_length=num_tokens).fits(conversation)
    short = _scorer(folder, max_length=num_tokens - 1)
    assert not short.fits(conversation)
    with pytest.raises(BadDataError, match=f"Conversation 2 has {num_tokens} tokens, more than max_length"):
        short.score([[{"role": "user", "content": "a"}], conversation])


def test_nothing_to_score_gives_nothing(folder: Path) -> None:
    assert _scorer(folder).score([]) == []


def test_no_token_is_an_error_not_a_score(folder: Path) -> None:
    with pytest.raises(BadDataError, match="no token"):
        _scorer(folder).score_tokens([[]])


def test_a_model_without_score_head_is_refused_although_transformers_would_make_one_up(tmp_path: Path) -> None:
    _save(tmp_path, **{"score.weight": None})
    AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with pytest.raises(MissingPrerequisiteError, match=r"score\.weight is not in its files"):
        _scorer(tmp_path)


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match=r"no trained reward model|outputs"):
        _scorer(save_causal_model(tmp_path))


def test_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, **{"score.weight": torch.zeros(1, 7)})
    with pytest.raises(MissingPrerequisiteError, match=r"score\.weight has the shape \(1, 7\).* needs \(1, 32\)"):
        _scorer(tmp_path)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    _save(tmp_path, **{"score.weight": torch.full((1, 32), torch.nan)})
    with pytest.raises(DivergedError, match=r"score\.weight is not finite"):
        _scorer(tmp_path)


def test_a_score_that_is_not_finite_stops_everything(tmp_path: Path) -> None:
    _save(tmp_path, **{"score.weight": torch.full((1, 32), 3e38)})
    with pytest.raises(DivergedError, match=r"of 2 scores are not finite"):
        _scorer(tmp_path).score(_conversations(1))


def test_a_truncated_weights_file_is_refused(tmp_path: Path) -> None:
    _save(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(MissingPrerequisiteError, match="cannot be loaded"):
        _scorer(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    _save(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(MissingPrerequisiteError, match="cannot be loaded"):
        _scorer(tmp_path)


def test_the_head_digest_is_that_of_the_saved_and_of_the_loaded_head(folder: Path) -> None:
    saved = score_head_sha256(folder)
    assert saved == score_head_sha256(_scorer(folder).model)
    assert len(saved) == 64


def test_with_lora_the_trained_copy_of_the_head_is_the_one_that_counts(tmp_path: Path) -> None:
    start = save_causal_model(tmp_path / "start")
    tokenizer = tiny_tokenizer()
    base = load_new_reward_model(start, pad_token_id=tokenizer.pad_token_id, seed=1, dtype=torch.float32, device="cpu")
    before = score_head_sha256(base)
    adapted = apply_lora(base, LoraSettings(r=2, alpha=4), task_type="SEQ_CLS")
    for name, parameter in adapted.named_parameters():
        if "score" in name and parameter.requires_grad:
            parameter.data.fill_(0.5)
    scores = RewardScorer(adapted, tokenizer, max_length=256, batch_size=4).score(_conversations(2))
    with torch.no_grad():
        tokens = [tokenizer.apply_chat_template(c, return_dict=True)["input_ids"] for c in _conversations(2)]
        plain = [adapted(input_ids=torch.tensor([ids])).logits[0, 0].item() for ids in tokens]
    assert scores == pytest.approx(plain, abs=1e-5)
    save_adapter(adapted, tokenizer, tmp_path / "adapter", base_model="test/start")
    assert score_head_sha256(tmp_path / "adapter") == score_head_sha256(adapted) != before


def test_an_artifact_without_head_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match="random head"):
        score_head_sha256(save_causal_model(tmp_path))


def test_in_bfloat16_adapter_and_merged_copy_score_within_the_allowed_difference(tmp_path: Path) -> None:
    """The code path of GPU profiles, taken on the CPU: frozen weights in bfloat16, adapters and head in float32."""
    start, tokenizer = save_causal_model(tmp_path / "start"), tiny_tokenizer()

    def base(seed: int) -> Any:
        return load_new_reward_model(
            start, pad_token_id=tokenizer.pad_token_id, seed=seed, dtype=torch.bfloat16, device="cpu"
        )

    adapted = apply_lora(base(1), LoraSettings(r=2, alpha=4), task_type="SEQ_CLS")
    torch.manual_seed(0)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    trained = RewardScorer(adapted, tokenizer, max_length=256, batch_size=4).score(_conversations(8))
    save_adapter(adapted, tokenizer, tmp_path / "adapter", base_model="test/start")
    save_merged(adapted, tokenizer, tmp_path / "merged")
    merged = RewardScorer.load(tmp_path / "merged", device="cpu", dtype=torch.bfloat16, max_length=256, batch_size=4)
    adapter = RewardScorer(
        PeftModel.from_pretrained(base(2), tmp_path / "adapter"), tokenizer, max_length=256, batch_size=4
    )
    assert {tensor.dtype for tensor in load_file(tmp_path / "merged" / "model.safetensors").values()} == {
        torch.bfloat16
    }
    allowed = allowed_difference(torch.bfloat16, trained, num_layers=2)
    assert max(trained) - min(trained) > 3 * allowed
    assert merged.score(_conversations(8)) == pytest.approx(trained, abs=allowed)
    assert adapter.score(_conversations(8)) == pytest.approx(trained, abs=allowed)
