"""A judge that likes long answers must not make a policy better that only writes more."""

import importlib
import random
import sys
from pathlib import Path
from types import ModuleType

import pandas
import pytest

from containers.evals.intervals import share_interval
from containers.judges.length_control import length_controlled_share, length_controlled_win_rate

_RNG_SEED, _NUM_PAIRS = 3, 120


def drawn(num_pairs: int, *, better: float, longer: float) -> tuple[list[float], list[int], list[int]]:
    """Pairs of a policy that wins by quality and by length: points, its lengths, and the baseline's."""
    rng = random.Random(_RNG_SEED)  # noqa: S311
    points, lengths, baseline = [], [], []
    for _ in range(num_pairs):
        own, other = rng.randint(50, 400) + int(longer), rng.randint(50, 400)
        pull = better + 2.0 * (own - other) / 150
        points.append(float(rng.random() < 1 / (1 + 2.718281828**-pull)))
        lengths.append(own)
        baseline.append(other)
    return points, lengths, baseline


def test_a_policy_that_only_writes_more_is_no_better_at_equal_lengths() -> None:
    points, lengths, baseline = drawn(600, better=0.0, longer=150)
    found = length_controlled_win_rate(points, lengths=lengths, baseline_lengths=baseline)
    assert sum(points) / len(points) > 0.75
    assert found == pytest.approx(0.5, abs=0.08)


def test_a_policy_that_is_better_stays_better() -> None:
    points, lengths, baseline = drawn(600, better=1.0, longer=150)
    found = length_controlled_win_rate(points, lengths=lengths, baseline_lengths=baseline)
    assert found is not None and found > 0.62


def test_few_pairs_and_equal_lengths_say_nothing() -> None:
    assert length_controlled_win_rate([1.0] * 19, lengths=range(19), baseline_lengths=[5] * 19) is None
    assert length_controlled_win_rate([1.0] * 30, lengths=[9] * 30, baseline_lengths=[5] * 30) is None


@pytest.mark.parametrize("points", [[1.0] * 40, [0.0] * 40, [0.5] * 40])
def test_a_judge_of_one_opinion_keeps_it(points: list[float]) -> None:
    lengths = [10 + 3 * place for place in range(40)]
    found = length_controlled_win_rate(points, lengths=lengths, baseline_lengths=[60] * 40)
    assert found is not None
    assert (found > 0.9) == (points[0] == 1.0) and (found < 0.1) == (points[0] == 0.0)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package of AlpacaEval; it imports a module that Python no longer has, and asks the hub for difficulties."""
    monkeypatch.setitem(sys.modules, "pkg_resources", ModuleType("pkg_resources"))
    found = importlib.import_module("alpaca_eval.metrics.glm_winrate")
    rows = "".join(f"{place},0.0,gamed\n" for place in range(_NUM_PAIRS))
    (tmp_path / "gamed.csv").write_text(f"index,instruction_difficulty,model\n{rows}", encoding="utf-8")
    monkeypatch.setattr(found, "hf_hub_download", lambda **_: str(tmp_path / "gamed.csv"))
    return found


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_is_what_the_package_of_alpaca_eval_says_without_difficulties(package: ModuleType, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    points = [rng.choice([0.0, 0.5, 1.0, rng.random()]) for _ in range(_NUM_PAIRS)]
    lengths, baseline = ([rng.randint(20, 900) for _ in points] for _ in range(2))
    rows = pandas.DataFrame(
        {
            "index": range(_NUM_PAIRS),
            "preference": [1 + value for value in points],
            "output_1": ["b" * length for length in baseline],
            "output_2": ["p" * length for length in lengths],
            "generator_1": "baseline",
            "generator_2": "policy",
        }
    ).set_index("index")
    theirs = package.get_length_controlled_winrate(rows, glm_name="length_controlled_minimal", save_weights_dir=None)
    ours = length_controlled_win_rate(points, lengths=lengths, baseline_lengths=baseline)
    assert ours is not None
    # In per cent; liblinear stops at a tolerance of 1e-4.
    assert 100 * ours == pytest.approx(theirs["length_controlled_winrate"], abs=2e-3)
    assert abs(ours - sum(points) / len(points)) < 0.05


@pytest.mark.waits
def test_the_interval_is_over_prompts_and_as_wide_as_the_evidence() -> None:
    points, lengths, baseline = drawn(240, better=0.5, longer=50)
    widths = []
    for pairs_of_a_prompt in (1, 8):
        prompts = [place // pairs_of_a_prompt for place in range(240)]
        found = length_controlled_share(points, lengths=lengths, baseline_lengths=baseline, prompt_ids=prompts)
        assert found is not None and found[1] is not None
        assert found[0] == length_controlled_win_rate(points, lengths=lengths, baseline_lengths=baseline)
        low, high = share_interval(found[1], confidence=0.95)
        assert 0 <= low < found[0] < high <= 1
        widths.append(high - low)
    assert 0.1 < widths[0] < 0.3
    # Eight pairs that are worth one observation each, and eight that are worth one together.
    lengths, baseline, points = ([value for value in of[:60] for _ in range(4)] for of in (lengths, baseline, points))
    copies = length_controlled_share(
        points, lengths=lengths, baseline_lengths=baseline, prompt_ids=[place // 4 for place in range(240)]
    )
    assert copies is not None and copies[1] is not None
    low, high = share_interval(copies[1], confidence=0.95)
    assert high - low > 1.4 * widths[0]


def test_wins_alone_are_no_surer_than_as_many_wins_without_a_model() -> None:
    found = length_controlled_share(
        [1.0] * 40, lengths=range(40), baseline_lengths=[60] * 40, prompt_ids=[place // 2 for place in range(40)]
    )
    assert found is not None and found[1] is not None
    low, high = share_interval(found[1], confidence=0.95)
    assert low < 0.85 and high > 0.999


def test_a_rate_that_cannot_be_fitted_without_some_prompts_has_no_interval() -> None:
    points, lengths, baseline = drawn(20, better=0.5, longer=50)
    found = length_controlled_share(points, lengths=lengths, baseline_lengths=baseline, prompt_ids=range(20))
    assert found is not None and found[1] is None
