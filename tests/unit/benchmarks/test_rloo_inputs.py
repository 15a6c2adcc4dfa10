"""A peer that pads more than it must makes ours look faster than it is."""

import pytest

from benchmarks.rloo_inputs import DEFAULT, ROWS, SETTINGS, STEP, K, drawn_lengths, padding

ONE, BOTH = "TRL, 1 completion a batch, 1 prompt a generation", "TRL, 1 completion a batch, 2 prompts a generation"


def test_prompts_that_are_generated_together_are_padded_together() -> None:
    lengths = [(10, [5] * K), (20, [5] * K)]
    assert padding(lengths, BOTH) == pytest.approx(8 * 25 / 70)
    assert padding(lengths, ONE) == pytest.approx((4 * 15 + 4 * 25) / 70)
    assert padding(lengths, DEFAULT) == padding(lengths, BOTH)


def test_one_prompt_a_generation_saves_a_fifth_of_trl_s_tokens() -> None:
    draws = [drawn_lengths(2, seed=seed) for seed in range(1, 501)]
    together, alone = (sum(padding(lengths, way) for lengths in draws) for way in (BOTH, ONE))
    assert alone / together < 0.85


@pytest.mark.parametrize("way", list(SETTINGS))
def test_every_setting_makes_the_same_step_of_whole_prompts(way: str) -> None:
    setting = SETTINGS[way]
    assert setting["per_device_train_batch_size"] * setting["gradient_accumulation_steps"] == STEP
    together = setting["per_device_train_batch_size"] * setting["steps_per_generation"]
    assert together % K == 0
    assert setting["gradient_accumulation_steps"] % setting["steps_per_generation"] == 0


def test_the_settings_are_said_once_each() -> None:
    assert len(SETTINGS) == len({tuple(setting.items()) for setting in SETTINGS.values()}) == 5
    assert {ONE, BOTH} < set(SETTINGS) < set(ROWS)
