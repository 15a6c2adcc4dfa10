"""The order of examples depends on seed and epoch alone, and completions of one pair share its prompt."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainingArguments

from containers.algorithms.likelihood_objective import Likelihood
from containers.algorithms.offline_step import Example, OfflineStep
from containers.algorithms.offline_trainer import FamilyOrder, OfflineTrainer
from containers.packing.logps import add_logps, completion_packs
from tests.unit.factories.tiny_policy import save_causal_model

pytestmark = pytest.mark.stages

FAMILIES = [0, 0, 1, 2, 2, 5, 5, 7]


def test_members_of_a_family_follow_each_other_and_each_epoch_has_its_order() -> None:
    epoch = 0
    order = FamilyOrder(FAMILIES, seed=3, epoch=lambda: epoch)
    seen = []
    for epoch in range(4):  # noqa: B007
        places = list(order)
        assert sorted(places) == list(range(8)) and len(order) == 8
        assert all(abs(places.index(one) - places.index(one + 1)) == 1 for one in (0, 3, 5))
        seen.append(places)
    assert len({tuple(places) for places in seen}) == 4
    assert list(FamilyOrder(FAMILIES, seed=3, epoch=lambda: 2)) == seen[2]
    assert list(FamilyOrder(FAMILIES, seed=4, epoch=lambda: 2)) != seen[2]


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return save_causal_model(tmp_path / "start", scale=0.1)


def trainer_of(start: Path, folder: Path, examples: Sequence[Example], *, max_steps: int, batch: int) -> OfflineTrainer:
    model = AutoModelForCausalLM.from_pretrained(start)
    add_logps(model, temperature=1.0)
    cut: Callable[..., Any] = partial(completion_packs, max_tokens=500)
    return OfflineTrainer(
        examples=examples,
        validation=examples[:3],
        families=[place // 2 for place in range(len(examples))],
        make_step=lambda accelerator: OfflineStep(accelerator=accelerator, objective=Likelihood(), cut=cut),
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=max_steps,
            per_device_train_batch_size=batch,
            learning_rate=1e-3,
            logging_steps=1,
            save_steps=3,
            seed=7,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
    )


def siblings() -> list[Example]:
    """Two completions of each of eight prompts of 40 tokens."""
    return [
        Example(prompt=[60 + prompt, *range(61, 100)], completions=([70 + side, 80 + prompt],))
        for prompt in range(8)
        for side in range(2)
    ]


def test_both_completions_of_a_prompt_are_one_tree_in_each_step(start: Path, tmp_path: Path) -> None:
    trainer = trainer_of(start, tmp_path, siblings(), max_steps=4, batch=4)
    computed: list[int] = []
    trainer.model.get_input_embeddings().register_forward_hook(
        lambda module, given, made: computed.append(given[0].numel())
    )
    trainer.train()
    # Two prompts of 40 tokens with two completions of 2 tokens each; in rows it would be 4 × 42.
    assert computed == [2 * (40 + 2 * 2)] * 4
    lines = [entry for entry in trainer.state.log_history if "num_tokens" in entry]
    assert [entry["num_tokens"] for entry in lines] == [168, 336, 504, 672]


def test_each_epoch_of_a_training_has_another_order(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = siblings()
    seen: list[int] = []
    trainer, update = trainer_of(start, tmp_path, examples, max_steps=8, batch=4), OfflineStep.update

    def noted(self: OfflineStep, model: Any, given: Sequence[Example]) -> Any:
        seen.extend(examples.index(example) for example in given)
        return update(self, model, given)

    monkeypatch.setattr(OfflineStep, "update", noted)
    trainer.train()
    epochs = [seen[:16], seen[16:]]
    assert [sorted(places) for places in epochs] == [list(range(16))] * 2
    assert epochs[0] != epochs[1]


def test_a_resume_in_the_second_epoch_sees_the_examples_of_one_run(start: Path, tmp_path: Path) -> None:
    """An epoch is two steps; the checkpoint is of step 3 of 6."""
    whole = trainer_of(start, tmp_path / "whole", siblings(), max_steps=6, batch=8)
    whole.train()
    again = trainer_of(start, tmp_path / "again", siblings(), max_steps=6, batch=8)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    expected = dict(whole.model.named_parameters())
    assert all(torch.equal(weight, expected[name]) for name, weight in again.model.named_parameters())


def test_an_evaluation_is_the_mean_over_all_tokens_and_leaves_the_model_in_training(
    start: Path, tmp_path: Path
) -> None:
    uneven = [*siblings()[:2], Example(prompt=[60], completions=(list(range(60, 90)),))]
    trainer = trainer_of(start, tmp_path, uneven, max_steps=1, batch=1)
    trainer.model.train()
    metrics = trainer.evaluate()
    model, total, count = AutoModelForCausalLM.from_pretrained(start).eval(), 0.0, 0
    for example in uneven:
        ids = [*example.prompt, *example.completions[0]]
        labels = [-100] * len(example.prompt) + example.completions[0]
        with torch.no_grad():
            loss = float(model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss)
        total, count = total + loss * len(example.completions[0]), count + len(example.completions[0])
    assert metrics["eval_loss"] == pytest.approx(total / count, rel=1e-5)
    assert trainer.model.training
    assert trainer.state.log_history[-1]["eval_loss"] == metrics["eval_loss"]
