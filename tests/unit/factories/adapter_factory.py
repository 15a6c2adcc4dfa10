"""LoRA adapters of a tiny reward model, saved as a training saves them, with their base model beside them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel

from containers.contracts.certificate import SCORE_STATISTICS_FILE, ScoreStatistics
from containers.contracts.configs.parts.training import LoraSettings
from containers.contracts.digests import file_entries
from containers.contracts.manifest import LineageEntry, Manifest
from containers.contracts.names import BASE_FOLDER, MANIFEST_FILE, StageName
from containers.evals.sample_predictions import sample_predictions, write_sample_predictions
from containers.models.loading import (
    apply_lora,
    freeze_all_but_head,
    load_new_reward_model,
    load_tokenizer,
    save_adapter,
    save_merged,
)
from containers.models.score_token import add_score_token
from containers.scoring.scorer import RewardScorer
from tests.unit.factories.tiny_policy import save_causal_model


@dataclass(frozen=True)
class MadeAdapter:
    """`folder` holds the adapter alone; `merged` the same model without adapters."""

    folder: Path
    base: Path
    merged: Path

    def with_base(self, folder: Path) -> Path:
        """Adapter and base model in one folder, as the orchestrator hands them to a stage."""
        copy_files(self.folder, folder)
        copy_files(self.base, folder / BASE_FOLDER)
        (folder / "config.json").write_bytes((self.base / "config.json").read_bytes())
        return folder


def copy_files(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def trained_reward_model(folder: Path, *, digest: str = "sha256:0", seed: int = 0) -> MadeAdapter:
    """An artifact of train_reward_model, adapter and merged model, whose training started from a model of that digest.

    `make_context` gives its start model the default.
    """
    made = make_adapter(folder, seed=seed)
    lineage = (LineageEntry(name="start_model", digest=digest, origin="test/start_model"),)
    by = ScoreStatistics(mean=0.5, standard_deviation=2.0, num_scores=9, scores_of="these")
    (made.merged / SCORE_STATISTICS_FILE).write_text(by.model_dump_json())
    _log_scores(folder, made)
    manifest = Manifest(
        stage=StageName.TRAIN_REWARD_MODEL,
        key="a" * 64,
        files=file_entries(folder),
        lineage=lineage,
        created_at="2026-01-01T00:00:00Z",
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return made


def _log_scores(folder: Path, made: MadeAdapter) -> None:
    """Write the scores that a training logs of a few pairs."""
    scorer = RewardScorer.load(made.merged, device="cpu", dtype=torch.float32, max_length=256, batch_size=4)
    rows = [
        {
            "prompt": [turn("user", "x" * n)],
            "chosen": [turn("assistant", "a" * n)],
            "rejected": [turn("assistant", "b")],
        }
        for n in range(1, 9)
    ]
    sides = [[*row["prompt"], *row[side]] for row in rows for side in ("chosen", "rejected")]
    scores = scorer.score(sides)
    pairs = list(zip(scores[::2], scores[1::2], strict=True))
    write_sample_predictions(folder, sample_predictions([{**row, "domain": ""} for row in rows], pairs))


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def make_adapter(
    folder: Path, *, base_model: str = "", use_cls: bool = False, head_only: bool = False, seed: int = 0
) -> MadeAdapter:
    """An adapter with random weights; `base_model` is what it names as its base (default: the folder of that)."""
    made = MadeAdapter(folder / "adapter", save_causal_model(folder / "start"), folder / "merged")
    tokenizer = load_tokenizer(made.base)
    token_id = add_score_token(tokenizer) if use_cls else None
    model = load_new_reward_model(
        made.base,
        pad_token_id=tokenizer.pad_token_id,
        seed=seed,
        dtype=torch.float32,
        device="cpu",
        score_token_id=token_id,
    )
    adapted = (
        freeze_all_but_head(model, score_token_id=token_id)
        if head_only
        else apply_lora(model, LoraSettings(r=4, alpha=8), task_type="SEQ_CLS", score_token_id=token_id)
    )
    assert isinstance(adapted, PeftModel)
    torch.manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name or "trainable_tokens_delta" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    save_adapter(adapted, tokenizer, made.folder, base_model=base_model or str(made.base))
    save_merged(adapted, tokenizer, made.merged)
    return made
