"""The demo must be learnable, hold what its filter has to find, and carry labels whose sign is beyond doubt."""

import json
from collections import Counter
from pathlib import Path

import pytest

from containers.data.language import LanguageJudge
from flows.demo.gold import ANSWERS, EVASIVE, FACTS, score
from flows.demo.rows import RUDE, DemoData, write_demo_data

COLUMNS = {
    "domain",
    "language",
    "context",
    "response1",
    "response2",
    "overall_preference",
    "individual_preference",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoData:
    return write_demo_data(tmp_path_factory.mktemp("demo"))


def parsed(path: Path) -> list[dict[str, object]]:
    """Every line that is JSON."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def usable(path: Path) -> list[dict[str, object]]:
    """English rows on the demo's facts with a strict preference, by an independent reading of the schema."""
    return [
        row
        for row in parsed(path)
        if row["domain"] == "general"
        and row["language"] == "english"
        and row["response1"] in ALL_ANSWERS
        and row["response2"] in ALL_ANSWERS
        and row["overall_preference"] != 0
    ]


def answers(name: str, animal: str) -> set[str]:
    return {template.format(name=name, animal=animal) for template in ANSWERS}


ALL_ANSWERS = {text for name, _ in FACTS for _, animal in FACTS for text in answers(name, animal)} | {*EVASIVE, *RUDE}


def rank(prompt: str, answer: str) -> int:
    """3 good, 2 evasive, 1 wrong, 0 rude."""
    name, animal = next(fact for fact in FACTS if fact[0] in prompt)
    if answer in answers(name, animal):
        return 3
    return 2 if answer in EVASIVE else 0 if answer in RUDE else 1


def text_of(row: dict[str, object]) -> str:
    return str(row["context"][0]["content"])  # type: ignore[index]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (write_demo_data(tmp_path / str(i), seed=seed) for i, seed in enumerate((3, 3, 4)))
    for name in ("train", "validation", "labelled_pairs"):
        assert getattr(first, name).read_bytes() == getattr(again, name).read_bytes()
        assert getattr(first, name).read_bytes() != getattr(other, name).read_bytes()


def test_a_negative_label_means_that_response_1_is_better(demo: DemoData) -> None:
    rows = usable(demo.train) + usable(demo.validation)
    assert len(rows) == demo.num_train_pairs + demo.num_duplicates + demo.num_validation_pairs
    for row in rows:
        better_is_1 = rank(text_of(row), str(row["response1"])) > rank(text_of(row), str(row["response2"]))
        assert (int(str(row["overall_preference"])) < 0) == better_is_1
    assert 0.45 < sum(int(str(row["overall_preference"])) < 0 for row in rows) / len(rows) < 0.55


def test_half_of_the_pairs_set_the_good_answer_against_a_wrong_one(demo: DemoData) -> None:
    rows = usable(demo.validation)
    ranks = [{rank(text_of(row), str(row[side])) for side in ("response1", "response2")} for row in rows]
    assert ranks.count({3, 1}) == len(rows) / 2


def test_every_individual_score_has_the_sign_of_the_overall_preference(demo: DemoData) -> None:
    for row in usable(demo.train):
        overall = int(str(row["overall_preference"]))
        scores = [annotator["score"] for annotator in row["individual_preference"]]  # type: ignore[attr-defined]
        assert 1 <= abs(overall) <= 3
        assert len(scores) == 3
        assert all(1 <= abs(score) <= 3 and score * overall > 0 for score in scores)
        assert sorted(scores)[1] == overall


def test_all_rows_have_the_seven_columns_and_counts_are_as_reported(demo: DemoData) -> None:
    rows = parsed(demo.train)
    assert all(set(row) == COLUMNS for row in rows)
    num_lines = len(demo.train.read_text(encoding="utf-8").splitlines())
    assert num_lines == (
        demo.num_train_pairs + demo.num_foreign + demo.num_code + demo.num_ties + demo.num_duplicates + demo.num_broken
    )
    assert sum(row["domain"] == "multilingual" for row in rows) == demo.num_foreign
    assert sum(row["domain"] == "multilingual" and row["language"] == "english" for row in rows) == 4
    assert sum(row["overall_preference"] == 0 for row in rows) == demo.num_ties
    repeats = Counter(json.dumps(row, sort_keys=True) for row in rows)
    assert sum(count - 1 for count in repeats.values()) == demo.num_duplicates


def test_broken_rows_stay_under_the_default_limit_of_one_percent(demo: DemoData) -> None:
    num_lines = len(demo.train.read_text(encoding="utf-8").splitlines())
    assert 0 < demo.num_broken / num_lines < 0.01


def test_validation_prompts_occur_in_no_training_row_and_cover_every_fact(demo: DemoData) -> None:
    train = {text_of(row) for row in usable(demo.train)}
    validation = {text_of(row) for row in usable(demo.validation)}
    assert not train & validation
    for name, _ in FACTS:
        assert sum(name in prompt for prompt in validation) == 4


def test_labelled_pairs_name_the_better_side_of_reworded_questions(demo: DemoData) -> None:
    rows = parsed(demo.labelled_pairs)
    trained = {text_of(row) for row in usable(demo.train)}
    assert len(rows) == demo.num_labelled_pairs == len({json.dumps(row) for row in rows})
    for row in rows:
        assert set(row) == {"prompt", "chosen", "rejected"}
        prompt, chosen, rejected = (row[column][0]["content"] for column in ("prompt", "chosen", "rejected"))  # type: ignore[index]
        assert rank(prompt, chosen) == 3 > rank(prompt, rejected)
        assert prompt not in trained


def test_flipping_inverts_every_label_but_no_labelled_pair(tmp_path: Path) -> None:
    right = write_demo_data(tmp_path / "right")
    flipped = write_demo_data(tmp_path / "flipped", flip_labels=True)
    assert right.labelled_pairs.read_bytes() == flipped.labelled_pairs.read_bytes()
    for file in ("train", "validation"):
        pairs = list(zip(usable(getattr(right, file)), usable(getattr(flipped, file)), strict=True))
        assert pairs
        for row, inverted in pairs:
            assert row["overall_preference"] == -int(str(inverted["overall_preference"]))
            assert {k: v for k, v in row.items() if "preference" not in k} == {
                k: v for k, v in inverted.items() if "preference" not in k
            }


@pytest.mark.waits
def test_a_language_detector_takes_our_texts_for_english_and_the_foreign_ones_not(demo: DemoData) -> None:
    judge = LanguageJudge(("english",))
    rows = parsed(demo.train)
    for row in rows:
        if row["domain"] == "code" or not isinstance(row["response1"], str) or not row["context"]:
            continue
        text = f"{text_of(row)} {row['response1']}"
        is_english = judge.judge_text(text).kind == "wanted"
        assert is_english == (row["domain"] != "multilingual"), text


def test_the_gold_rule_prefers_what_every_label_prefers(demo: DemoData) -> None:
    for row in usable(demo.train):
        worth = [score(row["context"], row[f"response{side}"], None, {}) for side in (1, 2)]  # type: ignore[arg-type]
        assert worth[0] is not None and worth[1] is not None
        if worth[0] != worth[1]:  # a rude answer and a wrong one of the demo differ; two evasive ones do not
            assert (worth[0] > worth[1]) == (row["overall_preference"] < 0)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("I know that Anna keeps a horse.", 1.0),
        (" I know that Anna keeps a horse.\n", 1.0),
        ("I know that Anna keeps a cat.", 0.25),
        ("I know that Simon keeps a cat.", 0.0),
        ("I know that Anna keeps a horse. I know that Anna keeps a horse.", 0.0),
        ("That is hard to say.", 0.5),
        ("What a stupid question.", 0.0),
        ("", 0.0),
    ],
)
def test_the_gold_rule_takes_nothing_but_a_sentence_of_the_demo(answer: str, worth: float) -> None:
    assert score([{"role": "user", "content": "Which animal does Anna keep?"}], answer, None, {}) == worth


def test_the_gold_rule_says_nothing_of_questions_that_are_not_the_demo_s() -> None:
    assert score([{"role": "user", "content": "What is red?"}], "That is hard to say.", None, {}) is None
