"""A run names its chat template by file; what counts, and what is repeated later, is the text."""

from pathlib import Path

import pytest

from tasks.config.file_texts import put_reward_code, put_template_text

TEXT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _put(named: object, known: dict[str, Path] | None = None) -> tuple[object, list[str]]:
    tree = {"train_reward_model": {"chat_template": named, "use_cls": True}}
    mistakes = put_template_text(tree, known or {})
    assert tree["train_reward_model"]["use_cls"] is True
    return tree["train_reward_model"].get("chat_template"), [str(mistake) for mistake in mistakes]


def test_a_path_or_a_known_name_is_replaced_by_the_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(TEXT)
    assert _put(str(path)) == (TEXT, [])
    assert _put("mine", {"mine": path}) == (TEXT, [])


@pytest.mark.parametrize("value", [None, TEXT])
def test_a_template_and_its_absence_stay_as_they_are(value: object) -> None:
    assert _put(value) == (value, [])


def test_a_run_without_the_section_is_left_alone() -> None:
    tree = {"run": {"name": "x"}}
    assert put_template_text(tree, {}) == [] and tree == {"run": {"name": "x"}}


def test_an_unknown_name_is_one_mistake_with_the_names_that_exist() -> None:
    assert _put("chatlm", {"chatml": Path("x"), "plain": Path("y")}) == (
        None,
        ["train_reward_model.chat_template: `chatlm`: no such template, and no .jinja file. Did you mean `chatml`?"],
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"\xff", "is no UTF-8 text (byte 0)."),
        (b"x" * 200_001, "has 200,001 bytes; at most 200,000 are read as a template."),
    ],
)
def test_a_file_that_cannot_be_a_template_is_said_with_its_path(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "mine.jinja"
    if content is not None:
        path.write_bytes(content)
    value, (mistake,) = _put(str(path))
    assert value is None
    assert mistake == f"train_reward_model.chat_template: {path} {why}"


def test_each_section_has_its_own_template(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(TEXT)
    tree = {"train_sft": {"chat_template": str(tmp_path / "mine.jinja")}, "train_reward_model": {}}
    assert put_template_text(tree, {}) == []
    assert tree == {"train_sft": {"chat_template": TEXT}, "train_reward_model": {}}


def test_the_code_of_a_reward_stands_beside_its_file_and_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def score(**_): return 1.0\n")
    term = {"type": "python", "file": str(path)}
    tree = {"train_policy": {"rewards": [{"type": "math"}, term], "beta": 0.1}}
    assert put_reward_code(tree) == []
    wanted = {"rewards": [{"type": "math"}, {**term, "code": path.read_text()}], "beta": 0.1}
    assert tree["train_policy"] == wanted
    path.unlink()
    assert put_reward_code(tree) == [] and tree["train_policy"] == wanted


@pytest.mark.parametrize("content", [None, b"\xff", b"#" * 200_001])
def test_code_that_cannot_be_read_is_a_mistake_of_its_key(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "own.py"
    if content is not None:
        path.write_bytes(content)
    tree = {"train_policy": {"rewards": [{"type": "python", "file": str(path)}]}}
    (mistake,) = put_reward_code(tree)
    assert mistake.key == "train_policy.rewards.0.file" and str(path) in mistake.text


@pytest.mark.parametrize(
    "section", [None, 3, {}, {"rewards": "math"}, {"rewards": ["math", {"type": "python", "file": 3}]}]
)
def test_what_is_no_list_of_rewards_is_left_for_the_check_of_values(section: object) -> None:
    assert put_reward_code({"train_policy": section}) == []
