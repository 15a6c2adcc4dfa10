"""The self-test's probes see what they are there for: a changed word, a wrong kernel, a folder that loads nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from containers.algorithms.reward_model import make_packs
from containers.contracts.configs.selftest import SelftestRequest
from containers.selftest import cards, kernels
from containers.selftest.container import smallest_library, why_not_loaded
from containers.selftest.probe import PROBES, NotHereError
from containers.selftest.reward_step import pairs_that_fill
from containers.selftest.shape import causal_model, model_config, reward_model

pytestmark = pytest.mark.stages
CPU = torch.device("cpu")
QWEN = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 320,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_is_where_the_registry_says(name: str) -> None:
    assert callable(PROBES[name])


def test_a_pattern_that_comes_back_is_right_and_each_changed_word_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "_CPU_BYTES", 3 * 4096)
    monkeypatch.setattr(cards, "_BLOCK_BYTES", 4096)
    assert cards.pattern(CPU) == (3 * 4096, 0)
    calls, whole = [0], cards._expected

    def flipped(places: torch.Tensor, block: int) -> torch.Tensor:
        calls[0] += 1
        values = whole(places, block)
        if calls[0] == 2:  # the second block, while it is written
            values[[5, 900]] ^= 1 << 20
        return values

    monkeypatch.setattr(cards, "_expected", flipped)
    assert cards.pattern(CPU) == (3 * 4096, 2)


def test_blocks_that_land_in_each_others_place_are_seen() -> None:
    places = torch.arange(1024, dtype=torch.int32)
    assert not bool((cards._expected(places, 0) == cards._expected(places, 1)).any())


def test_a_kernel_that_is_wrong_shows_beside_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(300, 32), torch.randn(500, 32) / 6
    targets = torch.randint(500, (300,))
    right = kernels._errors(hidden, weight, targets)
    assert max(right.values()) < 1e-5
    own = kernels.ChunkedLogProbFunction

    class Wrong:
        @staticmethod
        def apply(states: torch.Tensor, *others: Any) -> Any:
            logps, entropies, *rest = own.apply(states, *others)
            return logps * 1.2, entropies, *rest

    monkeypatch.setattr(kernels, "ChunkedLogProbFunction", Wrong)
    wrong = kernels._errors(hidden, weight, targets)
    assert wrong["log-probabilities"] == pytest.approx(0.2, abs=0.01)
    assert wrong["gradient"] == pytest.approx(0.2, abs=0.01)


def test_a_library_loads_from_a_folder_and_text_does_not(tmp_path: Path) -> None:
    library = smallest_library()
    assert why_not_loaded(library, tmp_path / "cache") == ""
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert "cannot be loaded" in why_not_loaded(text, tmp_path / "cache")
    assert "cannot be loaded" in why_not_loaded(library, text)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(("budget", "max_length"), [(16_384, 2048), (2048, 64), (4096, 1000), (512, 512), (100, 512)])
def test_pairs_fill_a_pack_and_fit(budget: int, max_length: int) -> None:
    rows = pairs_that_fill(budget, max_length=max_length, words=300, count=64)
    sides = [(row["chosen_ids"], row["rejected_ids"]) for row in rows]
    assert max(len(side) for pair in sides for side in pair) <= max_length
    packs = make_packs(sides, max_tokens=budget)
    assert 0.94 * budget <= max(pack.input_ids.numel() for pack in packs) <= budget


def test_models_are_made_of_the_shape_alone_and_alike_each_time() -> None:
    request = SelftestRequest(probes=("numbers",), model=QWEN)
    one, other = (causal_model(model_config(request), dtype=torch.float32, device=CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one.config.num_hidden_layers == 2
    scorer = reward_model(model_config(request), dtype=torch.bfloat16, device=CPU)
    assert scorer.score.out_features == 1
    assert scorer.dtype == torch.bfloat16


def test_a_shape_that_is_not_known_is_refused_with_the_reason() -> None:
    with pytest.raises(NotHereError, match="rlhf fetch"):
        model_config(SelftestRequest(probes=("numbers",), model_note="not known here: `rlhf fetch` it first"))
