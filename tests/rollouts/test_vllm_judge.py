"""A judge by vLLM says what the same model says by transformers, and leaves no process behind."""

from pathlib import Path

import pytest
import torch

from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.configs.parts.judges import LanguageModelJudge
from containers.contracts.configs.parts.rewards import LengthTerm
from containers.contracts.names import StageName
from containers.harness.errors import BadConfigError
from containers.judges.language_model import PlainLetters, letters_of
from containers.judges.vllm_letters import start_letters
from containers.models.loading import load_causal_model, load_tokenizer
from tests.rollouts.vllm_factory import children, demand_no_more_children, save_start_model
from tests.unit.factories.spec_factory import make_context

pytestmark = [pytest.mark.stages, pytest.mark.vllm]

JUDGE = LanguageModelJudge(path="judge", name="opinion", engine="vllm")
CONFIG = EvaluatePolicyConfig(
    max_prompt_length=60, max_completion_length=40, rewards=(LengthTerm(target=(0, 9)),), judges=(JUDGE,)
)
TEXTS = ("A longer question, or so", "B?", "Why", "Which of both is the better one")


def test_probabilities_are_those_of_transformers_and_its_processes_end(tmp_path: Path) -> None:
    folder = save_start_model(tmp_path / "judge")
    tokenizer = load_tokenizer(folder)
    letters = letters_of(tokenizer)
    questions = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS] * 3
    model = load_causal_model(folder, dtype=torch.float32, device="cpu")
    wanted = PlainLetters(model, letters, pad_id=0, batch_size=4).chances(questions)
    context = make_context(tmp_path, StageName.EVALUATE_POLICY, CONFIG, {"judge_opinion": folder})
    before = children()
    by_vllm = start_letters(context, CONFIG, JUDGE, folder, letters=letters)
    try:
        found = by_vllm.chances(questions)
        assert by_vllm.longest == 511
    finally:
        by_vllm.close()
    # A letter beyond the twenty likeliest tokens has no probability there.
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4) if mine else theirs < 0.05
    assert any(mine for one in found for mine in one)
    demand_no_more_children(before)


def test_a_model_that_vllm_cannot_load_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder = save_start_model(tmp_path / "judge")
    (folder / "config.json").write_text('{"model_type": "qwen3", "architectures": ["Nothing"], "vocab_size": 8}')
    context = make_context(tmp_path, StageName.EVALUATE_POLICY, CONFIG, {"judge_opinion": folder})
    with pytest.raises(BadConfigError, match=r"judge opinion: .*engine: transformers instead"):
        start_letters(context, CONFIG, JUDGE, folder, letters=([1], [2]))
