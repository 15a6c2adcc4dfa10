"""Champion and challenger are compared on the same items, and on none that one of them was trained on."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.certificate import SuiteEvaluation
from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.names import CERTIFICATE_FILE, COMPLETIONS_FILE
from containers.data.rows import prompt_identity
from containers.evals.item_scores import write_item_scores
from containers.evals.paired import clustered_difference
from containers.report.champions import contest_text
from tasks.champions.contests import Compared, policy_contest, reward_model_contests
from tasks.champions.seen import seen_prompts, suite_prompts
from tasks.config.retrain import RetrainRules
from tests.unit.factories.report.certificate_artifact import identity, scored_pair
from tests.unit.factories.report.certificate_factory import certificate

RULES = RetrainRules()
Scores = dict[str, tuple[str, float]]


def _evaluation(folder: Path, files: dict[str, Scores]) -> Path:
    """Of each file: pair → its prompt and margin."""
    folder.mkdir()
    tables = tuple(SuiteEvaluation(name=name, num_pairs=len(scores)) for name, scores in files.items())
    (folder / CERTIFICATE_FILE).write_text(certificate(tables).model_dump_json())
    for table, scores in zip(tables, files.values(), strict=True):
        scored = [scored_pair(name, prompt, margin) for name, (prompt, margin) in scores.items()]
        write_item_scores(scored, folder / table.item_scores_file)
    return folder


def test_items_are_joined_by_pair_and_counted_by_who_is_right(tmp_path: Path) -> None:
    champion = {"a": ("p", 1.0), "b": ("p", -1.0), "c": ("q", 1.0), "d": ("q", 0.0)}
    challenger = {"d": ("q", 2.0), "c": ("q", -1.0), "b": ("p", 1.0), "a": ("p", 3.0)}
    folders = [
        _evaluation(tmp_path / name, {"test": scores, "safety": scores})
        for name, scores in (("champion", champion), ("challenger", challenger))
    ]
    frozen, safety = reward_model_contests(*folders, seen=frozenset(), rules=RULES)
    assert (frozen.champion, frozen.challenger) == (0.625, 0.75)
    assert (frozen.num_better, frozen.num_worse) == (1, 1)  # p by b; q, where c loses more than d gains
    assert frozen.difference is not None and frozen.difference.value == pytest.approx(0.125)
    assert (frozen.name, frozen.budget) == ("the frozen pairs", None)
    assert (safety.name, safety.budget) == ("safety", 0.01)


def test_pairs_of_prompts_that_one_was_trained_on_are_left_out_for_both_and_counted(tmp_path: Path) -> None:
    champion = {"a": ("p", 1.0), "b": ("seen", 1.0), "c": ("seen", 1.0), "too long": ("q", 1.0)}
    challenger = {"a": ("p", 1.0), "b": ("seen", -1.0), "c": ("seen", -1.0)}
    folders = [
        _evaluation(tmp_path / name, {"test": scores})
        for name, scores in (("champion", champion), ("challenger", challenger))
    ]
    (frozen,) = reward_model_contests(*folders, seen=frozenset({identity("seen")}), rules=RULES)
    assert (frozen.count, frozen.seen_in_training, frozen.not_in_both) == (1, 2, 1)
    assert (frozen.champion, frozen.challenger, frozen.num_worse) == (1.0, 1.0, 0)


def test_nothing_left_is_said_and_no_figure_is_made_up(tmp_path: Path) -> None:
    folders = [_evaluation(tmp_path / name, {"test": {"a": ("p", 1.0)}}) for name in ("one", "other")]
    (frozen,) = reward_model_contests(*folders, seen=frozenset({identity("p")}), rules=RULES)
    assert (frozen.difference, frozen.champion, frozen.p_value) == (None, None, 1.0)
    assert "nothing was left" in contest_text(frozen)


def test_a_policy_wins_a_prompt_by_most_of_its_completions(tmp_path: Path) -> None:
    rows = {
        "won": ["policy", "policy", "reference"],
        "lost": ["reference", "reference", "policy"],
        "even": ["tie", "tie", "tie"],
        "seen": ["policy", "policy", "policy"],
    }
    columns = {
        "prompt_id": [name for name, winners in rows.items() for _ in winners],
        "winner": [winner for winners in rows.values() for winner in winners],
    }
    pq.write_table(pa.table(columns), tmp_path / COMPLETIONS_FILE)
    found = policy_contest(tmp_path, seen=frozenset({"seen"}), rules=RULES)
    assert (found.measure, found.count, found.seen_in_training) == ("win rate", 3, 1)
    assert (found.num_better, found.num_worse) == (1, 1)
    assert (found.challenger, found.champion) == (pytest.approx(0.5), pytest.approx(0.5))


def _prompts(path: Path, *texts: str) -> Path:
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in texts]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_training_prompts_are_told_apart_as_the_evaluation_tells_them(tmp_path: Path) -> None:
    for name in ("train.parquet", "policy_train_prompts.parquet"):
        _prompts(tmp_path / name, "Which animal  does Anna keep?", "Which animal  does Anna keep?")
    frozen = _prompts(tmp_path / "frozen.parquet", "What does Ben sell on Mondays?")
    (found,) = seen_prompts(tmp_path, frozen, overlap=0.9, with_policy=True, with_tune=False)
    assert found == prompt_identity([{"role": "user", "content": "which animal does ANNA keep?"}])
    assert found != prompt_identity([{"role": "system", "content": "which animal does anna keep?"}])


def test_a_frozen_prompt_that_is_like_a_training_prompt_counts_as_seen(tmp_path: Path) -> None:
    question = "Which colour does the animal have that Anna keeps in the garden behind her house?"
    _prompts(tmp_path / "train.parquet", question.replace("colour", "color"), "What is the capital of France?")
    _prompts(tmp_path / "tune.parquet", "How many legs has a spider of the usual kind?")
    spider = "How many legs has a spider of the usual kind?"
    frozen = _prompts(tmp_path / "frozen.parquet", question, "What does Ben sell on Mondays?", spider)
    held_out = {identity(question), identity("What does Ben sell on Mondays?")}
    for with_tune in (False, True):
        seen = seen_prompts(tmp_path, frozen, overlap=0.9, with_policy=False, with_tune=with_tune)
        assert seen & held_out == {identity(question)}
        assert (identity(spider) in seen) is with_tune
    learnt = _prompts(tmp_path / "demonstrations.parquet", "What does Ben sell on Mondays?")
    seen = seen_prompts(tmp_path, frozen, overlap=0.9, with_policy=False, with_tune=False, others=[learnt])
    assert seen & held_out == held_out, "what the start model was fine-tuned on counts"


def test_what_a_split_keeps_on_one_side_counts_as_seen_also_in_a_suite(tmp_path: Path) -> None:
    """Half of a prompt, and up to a hundred wordings: the filter's own rows are dropped by less."""
    text = "Natalia sold clips to many of her friends in April and then she sold half as many clips in May."
    wordings = [
        f"{place}: {text} So how would you explain that to {place} pupils of mine today?" for place in range(12)
    ]
    other = "Which bus goes from the old harbour to the museum on Sunday mornings in winter?"
    many = [f"The {place}th question is about the number {place * place}." for place in range(300)]
    _prompts(tmp_path / "train.parquet", *wordings[:10], *many)
    frozen = _prompts(tmp_path / "frozen.parquet", wordings[10], other)
    suite = {identity(prompt): [{"role": "user", "content": prompt}] for prompt in (wordings[11], f"{other} Or not?")}
    seen = seen_prompts(tmp_path, frozen, overlap=0.9, with_policy=False, with_tune=False, suites=[suite])
    assert identity(wordings[10]) in seen and identity(wordings[11]) in seen
    assert identity(other) not in seen and identity(f"{other} Or not?") not in seen


def test_prompts_of_suites_are_read_as_the_certificate_reads_them(tmp_path: Path) -> None:
    row = {"prompt": "Which bus goes there?", "chosen": "Line 4.", "rejected": "None."}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (found,) = suite_prompts([SuiteFile(name="own", path=str(tmp_path / "pairs.jsonl"))])
    assert found.keys() == {identity("Which bus goes there?")}


def test_suites_are_compared_by_their_own_score_and_all_together(tmp_path: Path) -> None:
    champion = {f"item {n}": (f"prompt {n}", 1.0 if n % 4 else -1.0) for n in range(400)}
    challenger = {
        name: (prompt, -1.0 if n < 60 else margin) for n, (name, (prompt, margin)) in enumerate(champion.items())
    }
    folders = [
        _evaluation(tmp_path / name, {"test": champion, "fallen": scores, "same": champion})
        for name, scores in (("champion", champion), ("challenger", challenger))
    ]
    frozen, fallen, same, together = reward_model_contests(*folders, seen=frozenset(), rules=RULES)
    assert (fallen.champion, fallen.challenger) == (0.75, 0.75 - 45 / 400)
    assert fallen.at_most is not None and -45 / 400 < fallen.at_most < -0.05 and fallen.regresses
    assert not same.regresses and not frozen.regresses
    assert (together.name, together.count) == ("all suites together", 800)
    assert together.difference is not None and together.difference.value == pytest.approx(-45 / 800)
    assert fallen.detectable is not None and together.detectable is not None
    assert fallen.detectable > together.detectable > 0.01


def _of_equal_models(random: np.random.Generator, *, num_items: int = 1500) -> Compared:
    """What two models do that differ on a tenth of the items, and are equally good."""
    values = random.choice([1.0, -1.0, 0.0], p=[0.05, 0.05, 0.9], size=num_items).tolist()
    found = clustered_difference(values, list(map(str, range(num_items))), confidence=0.95)
    return Compared("safety", "score", found, champion=0.7, challenger=0.7)


@pytest.mark.parametrize("num_bounded", [1, 6])
def test_where_a_fall_must_be_ruled_out_the_power_is_that_of_this_rule(num_bounded: int) -> None:
    random = np.random.default_rng(7)
    must = RetrainRules(rule_out_regression_on=("safety",), regression_budget=0.0)
    shown = _of_equal_models(random).bounded_contest(must, num_bounded=num_bounded).detectable
    assert shown is not None
    budget = RetrainRules(rule_out_regression_on=("safety",), regression_budget=shown)
    passes = [
        not _of_equal_models(random).bounded_contest(budget, num_bounded=num_bounded).regresses for _ in range(400)
    ]
    assert 0.73 < np.mean(passes) < 0.87


@pytest.mark.stages
def test_the_filter_tells_prompts_apart_in_the_same_way() -> None:
    from containers.data.formats.columns import detect_schema

    value = {
        "prompt": [{"role": "system", "content": "Be  brief."}, {"role": "user", "content": "Hello\nThere"}],
        "chosen": [{"role": "assistant", "content": "Hi"}],
        "rejected": [{"role": "assistant", "content": "No"}],
    }
    row = detect_schema([value], file="x.jsonl").parse(value)
    assert row.prompt_id == prompt_identity(row.pair.prompt)
