"""Work that is spread over programs gives what one gives, and a program that fails or dies is an error, not a wait."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from containers.distributed.spread import Spread, further_gpus, spread_over_gpus
from containers.harness.errors import StageError
from containers.models.loading import load_reward_model
from containers.models.over_gpus import load_writer
from containers.rollouts import generate
from containers.rollouts.generate import Completion, completion_logprobs, generate_completions
from containers.scoring.scorer import RewardScorer
from tests.fakes.spread_work import added, made
from tests.unit.factories.spec_factory import CPU
from tests.unit.factories.tiny_policy import save_causal_model, save_reward_model

pytestmark = pytest.mark.stages

ON_CPU = ("", "")


def test_values_come_in_order_from_several_programs() -> None:
    spread = Spread(made, {"start": 100}, gpus=ON_CPU)
    told: list[int] = []
    try:
        found = spread.map((100, os.getpid()), added, list(range(9)), sizes=[1] * 9, on_done=told.append)
    finally:
        spread.close()
    assert [value for value, _ in found] == list(range(100, 109))
    assert len({pid for _, pid in found}) == 3
    assert told[-1] == 9


def test_a_program_that_fails_says_why_and_one_that_dies_with_what_it_ended() -> None:
    with pytest.raises(StageError, match="The program on the CPU failed: ValueError: a negative start"):
        Spread(made, {"start": -1}, gpus=ON_CPU)
    spread = Spread(made, {"start": 0}, gpus=("",))
    try:
        with pytest.raises(StageError, match="failed: ValueError: unlucky"):
            spread.map((0, 0), added, [1, 13], sizes=[2, 1])
        with pytest.raises(StageError, match="ended with exit code -9"):
            spread.map((0, 0), added, [1, 99], sizes=[2, 1])
    finally:
        spread.close()


def test_without_further_gpus_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLHF_ROLLOUT_GPUS", raising=False)
    assert further_gpus() == []
    assert spread_over_gpus(made, {"start": 1}, profile=CPU) is None
    monkeypatch.setenv("RLHF_ROLLOUT_GPUS", "GPU-b,GPU-c")
    assert further_gpus() == ["GPU-b", "GPU-c"]


def test_scores_do_not_depend_on_the_number_of_programs(tmp_path: Path) -> None:
    folder = save_reward_model(tmp_path / "model")
    talks = [
        [{"role": "user", "content": "q" * n}, {"role": "assistant", "content": "a" * (40 - n)}] for n in range(30)
    ]
    alone = RewardScorer.load(
        folder, device="cpu", dtype=torch.float32, max_length=200, batch_size=4, batch_tokens=None
    )
    spread = Spread(load_reward_model, {"folder": folder, "dtype": torch.float32}, gpus=ON_CPU)
    together = RewardScorer(alone.model, alone.tokenizer, max_length=200, batch_size=4, spread=spread)
    try:
        for padded_since in ("", "a test"):
            for scorer in (alone, together):
                scorer.padded_since = padded_since
            assert together.score(talks) == alone.score(talks)
    finally:
        together.close()
    assert together.score(talks) == alone.score(talks), "closed, it works alone"


def test_completions_and_their_probabilities_do_not_either(tmp_path: Path) -> None:
    folder = save_causal_model(tmp_path / "model")
    model, tokenizer = load_writer(folder, torch.float32, "cpu")
    prompts = [tokenizer("x" * (3 + number))["input_ids"] for number in range(11)]
    spread = Spread(load_writer, {"folder": folder, "dtype": torch.float32}, gpus=ON_CPU)
    pad = int(tokenizer.pad_token_id)
    try:
        for temperature in (0.0, 1.0):
            settings: dict[str, Any] = {"max_new_tokens": 12, "temperature": temperature, "batch_size": 3, "seed": 5}
            told: list[int] = []
            alone = generate_completions(model, tokenizer, prompts, **settings)
            together = generate_completions(model, tokenizer, prompts, **settings, spread=spread, on_batch=told.append)
            assert together == alone
            assert told[-1] == len(prompts)
            logps = [
                completion_logprobs(model, alone, pad_id=pad, batch_size=3, spread=programs)
                for programs in (None, spread)
            ]
            assert logps[0] == logps[1]
    finally:
        spread.close()


def test_probabilities_do_not_depend_on_how_many_logits_are_made_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = load_writer(save_causal_model(tmp_path / "model"), torch.float32, "cpu")
    written = [
        Completion(tuple(range(5, 5 + length)), tuple(range(9, 30 - length)), "", ended=True) for length in range(1, 8)
    ]
    pad = int(tokenizer.pad_token_id)
    whole = completion_logprobs(model, written, pad_id=pad, batch_size=4, temperature=0.7)
    monkeypatch.setattr(generate, "LOGITS_BYTES", 1)
    assert completion_logprobs(model, written, pad_id=pad, batch_size=4, temperature=0.7) == pytest.approx(whole)
