"""A peer that pads more than it must makes ours look faster than it is."""

import pytest

from benchmarks.rloo_ways import (
    COMPLETIONS,
    DEFAULT,
    STEP_PROMPTS,
    drawn_lengths,
    every_way,
    padding,
    settings,
    whole_prompts,
)

ONE, BOTH = "TRL, 1 completion a batch, 1 prompt a generation", "TRL, 1 completion a batch, 2 prompts a generation"


def test_prompts_that_are_generated_together_are_padded_together() -> None:
    lengths = [(10, [5] * 4), (20, [5] * 4)]
    assert padding(lengths, BOTH) == pytest.approx(8 * 25 / 70)
    assert padding(lengths, ONE) == pytest.approx((4 * 15 + 4 * 25) / 70)
    assert padding(lengths, DEFAULT) == padding(lengths, BOTH)


def test_one_prompt_a_generation_saves_a_fifth_of_trl_s_tokens() -> None:
    draws = [drawn_lengths(2, seed=seed) for seed in range(1, 501)]
    together, alone = (sum(padding(lengths, way) for lengths in draws) for way in (BOTH, ONE))
    assert alone / together < 0.85


@pytest.mark.parametrize("completions", [2, 4, 6, 8])
def test_every_setting_makes_the_same_step_of_whole_prompts(completions: int) -> None:
    for setting in settings(completions).values():
        rows = setting["per_device_train_batch_size"]
        assert rows * setting["gradient_accumulation_steps"] == completions * STEP_PROMPTS
        assert rows * setting["steps_per_generation"] % completions == 0
        assert setting["gradient_accumulation_steps"] % setting["steps_per_generation"] == 0


def test_the_settings_are_said_once_each() -> None:
    found = settings(COMPLETIONS)
    assert len(found) == len({tuple(setting.items()) for setting in found.values()}) == 5
    assert {ONE, BOTH, *whole_prompts()} < set(found) < set(every_way(COMPLETIONS))
