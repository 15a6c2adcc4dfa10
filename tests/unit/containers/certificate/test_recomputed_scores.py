"""What the certificate says can be worked out again, by anybody, from the scores that lie beside it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from containers.contracts.certificate import Certificate, SuiteEvaluation
from containers.contracts.configs.evaluate_reward_model import EvaluateRewardModelConfig, SuiteFile
from containers.contracts.names import CERTIFICATE_FILE, StageName
from containers.stages import evaluate_reward_model
from tests.unit.factories.made_reward_models import random_model, write_reward_model
from tests.unit.factories.spec_factory import colour_rows, make_context, write_pairs

pytestmark = [pytest.mark.stages, pytest.mark.shared_data]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """The certificate of a model that has learnt nothing, on real rows."""
    folder = tmp_path_factory.mktemp("evaluation")
    rows = colour_rows(24, seed=99)
    suites = {"llmbar": ("llmbar", "llmbar_pairs.jsonl"), "votes": ("arena", "human_pref_pairs.jsonl.gz")}
    inputs = {
        "pairs": write_pairs(folder / "pairs", rows[:1], rows),
        "reward_model": write_reward_model(folder / "model", random_model(), rows),
        **{f"suite_{name}": shared_data / file for name, (_, file) in suites.items()},
    }
    named = tuple(
        SuiteFile.model_validate({"name": name, "benchmark": benchmark, "path": file})
        for name, (benchmark, file) in suites.items()
    )
    config = EvaluateRewardModelConfig(max_length=512, num_bootstrap=100, num_edited_pairs=0, suites=named)
    context = make_context(folder, StageName.EVALUATE_REWARD_MODEL, config, inputs)
    evaluate_reward_model.run(context)
    return context.output


def _suite(artifact: Path, name: str) -> SuiteEvaluation:
    found = Certificate.model_validate_json((artifact / CERTIFICATE_FILE).read_bytes())
    return next(suite for suite in found.suites if suite.name == name)


def test_llmbar_is_the_mean_of_its_subsets(artifact: Path) -> None:
    rights: dict[str, list[float]] = {}
    for row in pq.read_table(artifact / "scores_llmbar.parquet").to_pylist():
        chosen, rejected = row["score_chosen"], row["score_rejected"]
        rights.setdefault(row["subset"], []).append((chosen > rejected) + 0.5 * (chosen == rejected))
    means = {subset: sum(values) / len(values) for subset, values in rights.items()}
    everything = [right for values in rights.values() for right in values]
    suite = _suite(artifact, "llmbar")
    assert len(means) == 5 and len(everything) == suite.num_pairs > 50
    assert suite.score is not None and suite.score.value == pytest.approx(sum(means.values()) / 5)
    # Its pairs weigh what the score gives them.
    assert suite.accuracy is not None and suite.accuracy.value == pytest.approx(sum(means.values()) / 5)


def test_the_votes_are_counted_without_those_for_neither(artifact: Path) -> None:
    rows = pq.read_table(artifact / "scores_votes.parquet").to_pylist()
    right = [row["score_chosen"] > row["score_rejected"] for row in rows]
    suite = _suite(artifact, "votes")
    assert suite.score is not None and suite.score.value == pytest.approx(sum(right) / len(right))
    assert suite.score.count == len(right) == suite.num_pairs


def test_the_scores_of_all_responses_are_kept_also_where_none_is_better(artifact: Path) -> None:
    items = pq.read_table(artifact / "item_scores_votes.parquet").to_pylist()
    suite = _suite(artifact, "votes")
    assert len(items) == suite.num_items > suite.num_pairs
    by_item = {item["item_id"]: item["scores"] for item in items}
    for row in pq.read_table(artifact / "scores_votes.parquet").to_pylist():
        assert sorted([row["score_chosen"], row["score_rejected"]]) == sorted(by_item[row["item_id"]])
    assert suite.rows_read == suite.num_items + suite.num_left_out
