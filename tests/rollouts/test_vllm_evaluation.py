"""What vLLM writes for an evaluation is what the model would, on each GPU of the stage, and its processes end."""

import json
from pathlib import Path

import psutil
import pytest
import torch

from containers.contracts.configs.answer_sets import AnswerSetsConfig, StandardSet
from containers.contracts.names import StageName
from containers.distributed.spread import Spread
from containers.models.over_gpus import load_writer
from containers.rollouts.generate import Completion, generate_completions
from containers.rollouts.set_answers import read_answers
from containers.rollouts.vllm_server import load_vllm_writer
from containers.stages import answer_sets
from tests.rollouts.vllm_factory import children, demand_no_more_children, save_start_model
from tests.unit.factories.spec_factory import make_context

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


def test_programs_that_hold_the_model_together_write_what_one_would(tmp_path: Path) -> None:
    folder = save_start_model(tmp_path / "model")
    before = children()
    together = load_vllm_writer(folder, torch.float32, "cpu", longest=128, seed=7, num_gpus=2)
    settings = {"max_new_tokens": 12, "temperature": 0.0, "batch_size": 5, "seed": 3}
    try:
        whole = load_writer(folder, torch.float32, "cpu")
        assert generate_completions(*together, PROMPTS, **settings) == generate_completions(*whole, PROMPTS, **settings)  # type: ignore[arg-type]
        workers = psutil.Process().children(recursive=True)
    finally:
        together[0].close()
    assert not [worker for worker in workers if worker.is_running() and "EngineCore" in worker.name()]
    assert not [worker for worker in workers if worker.is_running() and "Worker" in worker.name()]
    demand_no_more_children(before)


def test_answers_to_a_set_are_those_of_the_model(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} plus 2?", "answer": f"#### {n + 2}"} for n in range(5)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = AnswerSetsConfig(
        sets=(StandardSet(name="sums", kind="math", path="p"),), max_prompt_length=100, max_completion_length=8
    )
    inputs = {"suite_sums": tmp_path / "sums.jsonl", "start_model": save_start_model(tmp_path / "model")}
    texts = []
    for engine in ("transformers", "vllm"):
        changed = config.model_copy(update={"rollout_engine": engine})
        context = make_context(tmp_path / engine, StageName.ANSWER_SETS, changed, inputs)
        answer_sets.run(context)
        texts.append([answer.texts for answer in read_answers(context.output / "set_answers.parquet")])
    assert texts[0] == texts[1] and len(texts[0]) == len(rows)
