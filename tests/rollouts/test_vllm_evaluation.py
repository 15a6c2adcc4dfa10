"""What vLLM writes for an evaluation is what the model would, on each GPU of the stage, and its processes end."""

from pathlib import Path

import pytest
import torch

from containers.distributed.spread import Spread
from containers.rollouts.generate import Completion, generate_completions, load_writer
from containers.rollouts.vllm_server import load_vllm_writer
from tests.rollouts.vllm_factory import children, demand_no_more_children, save_start_model

pytestmark = [pytest.mark.stages, pytest.mark.vllm]

PROMPTS = [list(range(10, 10 + length)) for length in (5, 40, 9, 90, 17)]


def test_greedy_completions_are_the_models_and_drawn_ones_repeat_however_many_programs_write(tmp_path: Path) -> None:
    folder = save_start_model(tmp_path / "model")
    arguments = {"folder": folder, "dtype": torch.float32}
    alone = {**arguments, "longest": 128, "seed": 7}
    before = children()
    by_vllm = load_vllm_writer(**alone, device="cpu")  # type: ignore[arg-type]
    spread = Spread(load_vllm_writer, alone, gpus=[""])

    def written(temperature: float, *, on: object = None, writer: object = by_vllm, size: int = 2) -> list[Completion]:
        model, tokenizer = writer  # type: ignore[misc]
        return generate_completions(
            model,
            tokenizer,
            PROMPTS,
            max_new_tokens=12,
            temperature=temperature,
            batch_size=size,
            seed=3,
            spread=on,  # type: ignore[arg-type]
        )

    try:
        assert written(0.0) == written(0.0, writer=load_writer(**arguments, device="cpu"))  # type: ignore[arg-type]
        drawn = written(1.2)
        assert drawn != written(0.0)
        assert written(1.2) == drawn
        assert written(1.2, on=spread) == drawn, "and so does a program on a further GPU"
        assert written(1.2, size=5) == drawn, "no batch changes what is drawn"
    finally:
        spread.close()
        by_vllm[0].close()
    demand_no_more_children(before)
