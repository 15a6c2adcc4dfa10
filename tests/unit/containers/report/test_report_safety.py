"""The page must not run what a dataset or a model put into it, ask for anything outside, or grow without end."""

import json
import re
from pathlib import Path

import pytest

from containers.contracts.names import CERTIFICATE_PAGE_FILE, CURVES_FILE, StageName
from containers.document.links import mlflow_run_url, safe_url
from tests.unit.factories.report.report_factory import MadeRun, make_run
from tests.unit.factories.report.report_page_factory import ATTACK, MAX_BYTES, Page, plant, render
from tests.unit.factories.report.report_records import gate


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    """A run in which everything went well; without curves, since a plot takes a tenth of a second."""
    return make_run(tmp_path, curves=False)


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a run in which everything went well."""
    return render(make_run(tmp_path_factory.mktemp("whole")))


def test_markup_in_prompts_names_and_messages_is_shown_and_not_obeyed(made: MadeRun) -> None:
    plant(made, ATTACK)
    pipeline = made.pipeline.model_copy(
        update={"run_name": ATTACK, "command": ATTACK, "config_yaml": ATTACK, "profile_name": ATTACK,
                "gates": (gate("reward_model", passed=False, waiver=(ATTACK, ATTACK)),)}
    )  # fmt: skip
    page = render(made, pipeline, title=ATTACK)
    assert page.text.count("document.title='owned'") >= 8
    assert not [tag for tag, _ in page.tags if tag in ("script", "img", "iframe", "object", "embed", "link", "form")]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_asks_for_nothing_from_outside_and_forbids_scripts(passed: Page) -> None:
    policy = [attributes["content"] for tag, attributes in passed.tags if attributes.get("http-equiv")]
    assert policy and policy[0] and policy[0].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert not [attributes for _, attributes in passed.tags if "src" in attributes]
    assert "url(http" not in passed.source and "@import" not in passed.source
    for _, attributes in passed.tags:
        assert (attributes.get("xlink:href") or "#").startswith("#")


def test_a_link_that_is_not_http_is_not_made_a_link(made: MadeRun) -> None:
    page = render(made, made.pipeline.model_copy(update={"mlflow_url": "javascript:alert(1)", "prefect_url": ""}))
    links = [attributes.get("href") or "" for tag, attributes in page.tags if tag == "a"]
    assert links and all(link.startswith("#") or link == CERTIFICATE_PAGE_FILE for link in links)
    assert safe_url("https://example.org") == "https://example.org"


def test_the_link_of_a_stage_opens_its_own_mlflow_run_and_not_that_of_the_pipeline(passed: Page) -> None:
    pipeline = "http://127.0.0.1:5000/#/experiments/1/runs/9a9a"
    assert mlflow_run_url(pipeline, "0f3c") == "http://127.0.0.1:5000/#/experiments/1/runs/0f3c"
    links = {attributes.get("href") for tag, attributes in passed.tags if tag == "a"}
    assert {pipeline, f"http://127.0.0.1:5000/#/experiments/1/runs/{'0f3c' * 8}"} <= links


@pytest.mark.parametrize(
    ("pipeline", "run_id"),
    [
        ("http://127.0.0.1:5000", "0f3c"),  # no page of a run, so no experiment to find the other one in
        ("", "0f3c"),
        ("javascript:alert(1)/runs/9a9a", "0f3c"),
        ("http://127.0.0.1:5000/#/experiments/1/runs/9a9a", "../x"),
        ("http://127.0.0.1:5000/#/experiments/1/runs/9a9a", "pending-0f3c"),
    ],
)
def test_a_run_whose_page_is_not_known_has_no_link(pipeline: str, run_id: str) -> None:
    assert mlflow_run_url(pipeline, run_id) == ""


def test_control_characters_are_made_visible_and_long_texts_say_how_long_they_were(made: MadeRun) -> None:
    text = "bell\x07 esc\x1b[31m turn\u202eback " + "x" * 50_000
    plant(made, text)
    page = render(made)
    assert "bell\\x07 esc\\x1b[31m turn\\u202eback" in page.text
    assert f"[first 900 of {len(text):,} characters]" in page.text
    assert not set(page.source) & {"\x07", "\x1b", "\u202e"}


@pytest.mark.waits
def test_the_page_stays_small_with_many_long_samples_and_long_curves(made: MadeRun) -> None:
    plant(made, "word " * 40_000, copies=200)
    lines = [
        {"type": "metrics", "step": step, "values": {"loss": 1 / step, "accuracy": 0.7}} for step in range(1, 20_001)
    ]
    path = made.folder(StageName.TRAIN_REWARD_MODEL) / CURVES_FILE
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    page = render(made, made.pipeline.model_copy(update={"config_yaml": "a: 1\n" * 100_000}))
    assert len(page.source.encode()) < MAX_BYTES


def test_plots_follow_the_theme_and_have_no_element_id_twice(passed: Page) -> None:
    identities = [attributes["id"] for _, attributes in passed.tags if attributes.get("id")]
    assert len(identities) == len(set(identities))
    drawings = re.findall(r"<svg.*?</svg>", passed.source, flags=re.DOTALL)
    assert drawings and all("var(--blue)" in drawing for drawing in drawings)
    assert not [colour for drawing in drawings for colour in re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawing)]
