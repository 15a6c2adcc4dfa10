"""Data without scores beside its labels can be upside down and look well: only a model that is trusted can tell."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.funnel import ReferenceCheck
from containers.contracts.names import StageName
from containers.data.formats.columns import HELPSTEER3
from containers.data.rows import Pair
from containers.harness.errors import BadConfigError, BadDataError, MissingPrerequisiteError
from containers.scoring.reference_polarity import sample_pairs, verdict_on
from containers.stages.filter_dataset import run
from tests.unit.factories.filter_factory import BAD, GOOD, Run, helpsteer3, write
from tests.unit.factories.made_reward_models import MAX_POSITIONS, token_counter
from tests.unit.factories.spec_factory import make_context
from tests.unit.factories.tiny_policy import save_causal_model, tiny_tokenizer

pytestmark = pytest.mark.stages

REFERENCE = {"reference_reward_model": {"path": "somewhere"}, "max_length": 512}


@pytest.fixture(scope="module")
def longer_is_better(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real reward model that scores the longer response higher."""
    folder = tmp_path_factory.mktemp("reference")
    token_counter().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def rows(count: int, *, inverted: int) -> list[dict[str, Any]]:
    """Rows whose longer response is chosen, but for the first `inverted`; neither has scores beside its label."""
    assert len(GOOD) > len(BAD)
    return [helpsteer3(number, overall_preference=2 if number < inverted else -2) for number in range(count)]


def run_on(tmp_path: Path, model: Path, made: list[dict[str, Any]], **polarity: Any) -> tuple[Run, str]:
    """The stage on these rows, and what it noted."""
    inputs = {"train_data": write(tmp_path / "rows.jsonl", made), "reference_reward_model": model}
    done = Run(tmp_path, inputs, polarity={**REFERENCE, **polarity}, check_language_on_text=False)
    return done, (done.context.work / "events.jsonl").read_text()


def test_labels_that_the_reference_shares_go_on_with_the_figures_noted(tmp_path: Path, longer_is_better: Path) -> None:
    done, notes = run_on(tmp_path, longer_is_better, rows(100, inverted=10), num_pairs=100)
    (check,) = done.funnel.reference
    assert (check.num_judged, check.num_agreeing, check.model) == (100, 90, "test/reference_reward_model")
    assert "agrees with the reference reward model test/reference_reward_model on 90.0% of 100 pairs" in notes
    assert "(95% interval 82.3% to 95.2%)" in notes
    assert "Warning" not in notes


def test_inverted_labels_stop_the_run_with_figures_and_advice(tmp_path: Path, longer_is_better: Path) -> None:
    with pytest.raises(BadDataError) as stopped:
        run_on(tmp_path, longer_is_better, rows(100, inverted=90), num_pairs=100)
    text = str(stopped.value)
    assert "on 10.0% of 100 pairs (95% interval 4.8% to 17.7%)" in text
    assert "correct the sign" in text and "filter_dataset.polarity.reference_reward_model" in text


def test_an_agreement_that_may_be_chance_is_a_warning_on_either_side_of_one_half(
    tmp_path: Path, longer_is_better: Path
) -> None:
    for inverted in (45, 55):
        _, notes = run_on(tmp_path / str(inverted), longer_is_better, rows(100, inverted=inverted), num_pairs=100)
        assert "Warning" in notes and "may be chance" in notes


def test_one_inverted_source_of_a_mixture_is_named_although_the_other_is_larger(
    tmp_path: Path, longer_is_better: Path
) -> None:
    soups = [
        {**row, "context": [{"role": "user", "content": f"Which soup {place}?"}]}
        for place, row in enumerate(rows(40, inverted=40))
    ]
    inputs = {
        "train_data_breads": write(tmp_path / "breads.jsonl", rows(120, inverted=0)),
        "train_data_soups": write(tmp_path / "soups.jsonl", soups),
        "reference_reward_model": longer_is_better,
    }
    mixture = [{"name": "breads"}, {"name": "soups"}]
    with pytest.raises(BadDataError, match=r"^test/train_data_soups: .* on 0\.0% of 40 pairs"):
        Run(tmp_path, inputs, polarity=REFERENCE, mixture=mixture, check_language_on_text=False)


def test_pairs_too_long_for_the_reference_are_counted_and_none_judged_is_a_warning(
    tmp_path: Path, longer_is_better: Path
) -> None:
    made = rows(60, inverted=0)
    for row in made[:20]:
        row["response1"] = row["response1"] * 8
    _, notes = run_on(tmp_path / "some", longer_is_better, made, num_pairs=60)
    assert "of 40 pairs" in notes and "20 pairs were too long" in notes
    _, notes = run_on(tmp_path / "all", longer_is_better, made, max_length=8)
    assert "judged none: every pair of the sample is longer than 8 tokens" in notes


def test_pairs_that_the_reference_cannot_read_are_left_out_and_counted(tmp_path: Path) -> None:
    """They say nothing about the data: the reference is another model than the one that will be trained."""
    folder = tmp_path / "model"
    token_counter().save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    refusal = "{% if ' 7 guests' in messages[0]['content'] %}{{ raise_exception('No sevens.') }}{% endif %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    made = rows(40, inverted=0)
    made[9]["response1"] += " <image_soft_token>"
    done, notes = run_on(tmp_path / "some", folder, made, num_pairs=40)
    (check,) = done.funnel.reference
    assert (check.num_judged, check.num_agreeing, check.num_unscorable) == (38, 38, 2)
    assert "2 pairs were left out, as the model's chat template refuses them" in notes
    _, notes = run_on(tmp_path / "none", folder, made, max_length=8)
    assert "or name another model in filter_dataset.polarity.reference_reward_model" in notes
    assert "train_sft" not in notes and "train_reward_model" not in notes


def test_a_max_length_beyond_the_positions_of_the_model_is_refused_with_both_figures(
    tmp_path: Path, longer_is_better: Path
) -> None:
    made = rows(40, inverted=0)
    with pytest.raises(BadConfigError, match=r"max_length is 1,025 tokens, .* has 1,024 positions: .* 1024 or"):
        run_on(tmp_path / "beyond", longer_is_better, made, max_length=MAX_POSITIONS + 1)
    _, notes = run_on(tmp_path / "all", longer_is_better, made, max_length=MAX_POSITIONS)
    assert "agrees with the reference reward model" in notes


def test_a_model_without_score_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisiteError, match="is no trained reward model"):
        run_on(tmp_path, save_causal_model(tmp_path / "model"), rows(40, inverted=0))


def test_nothing_is_asked_where_no_reference_is_configured(tmp_path: Path) -> None:
    config = FilterDatasetConfig(minimum_train_pairs=1, minimum_validation_pairs=1, check_language_on_text=False)
    inputs = {"train_data": write(tmp_path / "rows.jsonl", rows(100, inverted=100))}
    context = make_context(tmp_path, StageName.FILTER_DATASET, config, inputs)
    run(context)
    assert "reference" not in (context.work / "events.jsonl").read_text()


def pairs(**domains: int) -> list[Pair]:
    """So many pairs of each domain, two of each prompt."""
    read = HELPSTEER3.parse
    made = []
    for domain, count in domains.items():
        for number in range(count):
            prompt = [{"role": "user", "content": f"{domain} {number // 2}"}]
            made.append(read(helpsteer3(number, domain=domain, context=prompt)).pair)
    return made


def test_the_sample_is_spread_over_domains_and_takes_a_prompt_once() -> None:
    everything = pairs(general=400, stem=40, code=20)
    sample = sample_pairs(everything, size=60, seed=1)
    assert Counter(pair.domain for pair in sample) == {"general": 30, "stem": 20, "code": 10}
    assert len({pair.prompt[0]["content"] for pair in sample}) == 60


def test_the_sample_depends_on_the_seed_and_not_on_the_order() -> None:
    everything = pairs(general=400)
    sample = sample_pairs(everything, size=20, seed=1)
    assert sample_pairs(everything[::-1], size=20, seed=1) == sample
    assert sample_pairs(everything, size=20, seed=2) != sample


def test_a_share_below_one_half_stops_only_with_its_whole_interval() -> None:
    check = ReferenceCheck(
        source="a", model="m", num_judged=100, num_agreeing=40, agreement=0.4, low=0.31, high=0.499, confidence=0.95
    )
    with pytest.raises(BadDataError, match="beyond chance"):
        verdict_on(check, "a", max_length=8)
    assert "may be chance" in verdict_on(check.model_copy(update={"high": 0.5}), "a", max_length=8)
