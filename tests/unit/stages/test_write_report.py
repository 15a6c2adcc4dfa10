"""The page must say what happened, also where little did, and must not run what a dataset put into it."""

import html.parser
import json
import re
from pathlib import Path

import pytest

from containers.contracts.hardware import MeasuredContract
from containers.contracts.names import (
    CURVES_FILE,
    EVENTS_FILE,
    FUNNEL_FILE,
    POLICY_EVALUATION_FILE,
    REPORT_HTML_FILE,
    REPORT_MARKDOWN_FILE,
    REWARD_MODEL_EVALUATION_FILE,
    StageName,
)
from containers.contracts.records import CheckFinding, Funnel, Message, PipelineRecord
from containers.stages import write_report
from containers.stages.context import StageContext
from containers.stages.errors import BadDataError, MissingPrerequisiteError
from containers.stages.report_figures import running_mean
from containers.stages.report_inputs import read_curves
from containers.stages.report_sections import mlflow_run_url, safe_url, unaccounted_rows
from tests.unit.stages.report_factory import MadeRun, make_run, stage_record, with_stages
from tests.unit.stages.report_records import funnel, gate, policy_evaluation, reward_model_evaluation

ATTACK = "</style></svg><script>document.title='owned'</script><img src=x onerror=alert(1)>"
MAX_BYTES = 2_000_000
_INLINE = ("abbr", "b", "br", "code", "span")


class Page(html.parser.HTMLParser):
    """What a browser would make of the page: its tags with attributes, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.classes: list[str] = []
        self._text: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.classes.append(dict(attrs).get("class") or "")
        self._text.append("" if tag in _INLINE else " ")

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    @property
    def text(self) -> str:
        """The text, with white space as a browser shows it."""
        return " ".join("".join(self._text).split())

    @property
    def banner(self) -> str:
        """Tone and headline of the banner."""
        found = re.search(r'<div class="banner (\w+)".*?<h2>(.*?)</h2>', self.source, flags=re.DOTALL)
        assert found
        return f"{found[1]}: {found[2]}"


def render(made: MadeRun, pipeline: PipelineRecord | None = None, *, title: str = "RLHF run") -> Page:
    """The page of that run."""
    context = made.context(pipeline=pipeline, title=title)
    write_report.run(context)
    return Page((context.output / REPORT_HTML_FILE).read_text(encoding="utf-8"))


def markdown(context: StageContext) -> str:
    """The Markdown that was written beside the page."""
    return (context.output / REPORT_MARKDOWN_FILE).read_text(encoding="utf-8")


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    """A run in which everything went well; without curves, since a plot takes a tenth of a second."""
    return make_run(tmp_path, curves=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """A run in which everything went well, with its curves."""
    return make_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def passed(whole: MadeRun) -> Page:
    """The page of a run in which everything went well."""
    return render(whole)


def test_a_run_that_passed_says_so_with_the_figures_that_matter(passed: Page) -> None:
    assert passed.banner == "good: All gates passed."
    for figure in ("91.3 %", "89.4 to 93.2 %", "n = 812 held-out pairs", "+1.62", "1.33 to 1.91", "0.412 nats"):
        assert figure in passed.text
    assert "2,024 pairs" in passed.text
    assert "8 min 39 s" in passed.text  # seven stages of 74.2 s


def test_an_estimated_figure_is_marked_and_a_measured_one_is_not(passed: Page) -> None:
    assert passed.classes.count("card estimated") == 1
    assert passed.classes.count("card measured") == 5
    assert "KL to the reference estimated 0.412 nats" in re.sub(r"\s*(estimated)\s*", r" \1 ", passed.text)


def test_a_closed_gate_is_the_headline_and_leaves_the_policy_empty_with_the_reason(tmp_path: Path) -> None:
    made = make_run(tmp_path, accuracy=0.512, curves=False)
    stopped = with_stages(made.pipeline, until=StageName.EVALUATE_REWARD_MODEL)
    page = render(made, stopped.model_copy(update={"gates": (gate("reward_model", passed=False),)}))
    assert page.banner == "bad: The reward model did not pass its gate: policy training was not started."
    assert "0.512 on 812 pairs, wanted at least 0.600" in page.text
    assert "Nothing to show: the gate of the reward model closed." in page.text
    assert "All gates passed" not in page.text


def test_a_waived_gate_never_reads_as_passed_and_names_who_and_why(made: MadeRun) -> None:
    waived = gate("reward_model", passed=False, waiver=("Ada", "the labels of this fixture are random"))
    page = render(made, made.pipeline.model_copy(update={"gates": (waived, gate("policy"))}))
    assert page.banner == "warn: The reward model did not pass its gate, and the gate was waived."
    assert "Waived by Ada because: The labels of this fixture are random." in page.text
    assert "All gates passed" not in page.text


def test_a_policy_gate_that_closed_warns_against_using_the_policy(made: MadeRun) -> None:
    gates = (gate("reward_model"), gate("policy", passed=False))
    page = render(made, made.pipeline.model_copy(update={"gates": gates}))
    assert page.banner == "bad: The policy did not pass its gate."
    assert "Do not use it in place of its reference." in page.text


def test_a_failed_stage_is_the_headline_with_its_message_and_later_stages_say_why_they_did_not_start(
    made: MadeRun,
) -> None:
    failed = stage_record(StageName.TRAIN_POLICY, made.root, status="failed", message="diverged: loss nan at step 12")
    pipeline = with_stages(made.pipeline, failed, until=StageName.TRAIN_POLICY)
    page = render(made, pipeline.model_copy(update={"gates": (gate("reward_model"),)}))
    assert page.banner == "bad: train_policy failed."
    assert page.text.count("diverged: loss nan at step 12") == 2  # banner and table
    assert "evaluate_policy not started · train_policy failed" in page.text


def test_a_reused_stage_is_shown_as_reused_and_costs_no_time(made: MadeRun) -> None:
    reused = stage_record(StageName.TRAIN_SFT, made.folder(StageName.TRAIN_SFT), status="reused")
    page = render(made, with_stages(made.pipeline, reused))
    assert "6 run, 1 reused" in page.text
    assert "7 min 25 s" in page.text  # six stages of 74.2 s


def test_a_skipped_stage_shows_its_own_reason(made: MadeRun) -> None:
    reason = "no policy prompts were set aside"
    skipped = stage_record(StageName.EVALUATE_POLICY, made.root, status="skipped", message=reason)
    page = render(made, with_stages(made.pipeline, skipped).model_copy(update={"gates": (gate("reward_model"),)}))
    assert page.banner == "plain: The policy was not judged."
    assert f"Nothing to show: {reason}." in page.text


def test_optional_stages_that_are_no_part_of_the_run_are_left_out(tmp_path: Path) -> None:
    page = render(make_run(tmp_path, optional_stages=False, curves=False))
    assert "train_sft" not in page.text
    assert "build_base_model" not in page.text
    assert "Supervised fine-tuning" not in page.text


def test_a_run_that_never_started_is_reported_with_the_check_that_failed(made: MadeRun) -> None:
    check = CheckFinding(
        name="Docker daemon", found="no answer", wanted="answers", verdict="failure", advice="Start dockerd."
    )
    nothing = made.pipeline.model_copy(update={"stages": (), "gates": (), "checks": (check,), "measured": ()})
    page = render(made, nothing)
    assert page.banner == "bad: The system check failed: nothing was started."
    assert "Start dockerd." in page.text
    assert "Nothing to show: the system check failed." in page.text


def test_markup_in_prompts_names_and_messages_is_shown_and_not_obeyed(made: MadeRun) -> None:
    _plant(made, ATTACK)
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
    assert links and all(link.startswith("#") for link in links)
    assert safe_url("https://example.org") == "https://example.org"
    assert mlflow_run_url("http://127.0.0.1:5000/", "0f3c") == "http://127.0.0.1:5000/#/runs/0f3c"
    assert mlflow_run_url("http://127.0.0.1:5000", "../x") == ""


def test_control_characters_are_made_visible_and_long_texts_say_how_long_they_were(made: MadeRun) -> None:
    text = "bell\x07 esc\x1b[31m turn\u202eback " + "x" * 50_000
    _plant(made, text)
    page = render(made)
    assert "bell\\x07 esc\\x1b[31m turn\\u202eback" in page.text
    assert f"[first 900 of {len(text):,} characters]" in page.text
    assert not set(page.source) & {"\x07", "\x1b", "\u202e"}


def test_the_page_stays_small_with_many_long_samples_and_long_curves(made: MadeRun) -> None:
    _plant(made, "word " * 40_000, copies=200)
    lines = [
        {"type": "metrics", "step": step, "values": {"loss": 1 / step, "accuracy": 0.7}} for step in range(1, 20_001)
    ]
    path = made.folder(StageName.TRAIN_REWARD_MODEL) / CURVES_FILE
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    page = render(made, made.pipeline.model_copy(update={"config_yaml": "a: 1\n" * 100_000}))
    assert len(page.source.encode()) < MAX_BYTES


def test_run_returns_the_size_of_the_page_and_the_number_of_its_figures(whole: MadeRun) -> None:
    context = whole.context()
    metrics = {metric.name: metric for metric in write_report.run(context)}
    source = (context.output / REPORT_HTML_FILE).read_bytes()
    assert metrics["report_size"].value == len(source) < MAX_BYTES
    assert metrics["num_figures"].value == source.count(b"<svg") == 19
    assert metrics["report_size"].unit == "bytes"


def test_the_same_run_gives_the_same_page(whole: MadeRun, passed: Page) -> None:
    assert render(whole).source == passed.source


def test_plots_follow_the_theme_and_have_no_element_id_twice(passed: Page) -> None:
    identities = [attributes["id"] for _, attributes in passed.tags if attributes.get("id")]
    assert len(identities) == len(set(identities))
    drawings = re.findall(r"<svg.*?</svg>", passed.source, flags=re.DOTALL)
    assert drawings and all("var(--blue)" in drawing for drawing in drawings)
    assert not [colour for drawing in drawings for colour in re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawing)]


def test_a_damaged_record_is_named_and_the_rest_of_the_page_is_written(made: MadeRun) -> None:
    (made.folder(StageName.EVALUATE_POLICY) / POLICY_EVALUATION_FILE).write_text('{"num_prompts": ', encoding="utf-8")
    (made.folder(StageName.FILTER_DATASET) / FUNNEL_FILE).unlink()
    page = render(made)
    assert "policy_evaluation.json of evaluate_policy cannot be read" in page.text
    assert "funnel.json of filter_dataset is missing" in page.text
    assert "91.3 %" in page.text
    notes = (made.root / "work" / EVENTS_FILE).read_text(encoding="utf-8")
    assert "funnel.json of filter_dataset is missing" in notes


def test_a_funnel_that_does_not_add_up_is_said(made: MadeRun) -> None:
    path = made.folder(StageName.FILTER_DATASET) / FUNNEL_FILE
    assert unaccounted_rows(funnel()) == 0
    path.write_text(funnel().model_copy(update={"train_pairs": 1900}).model_dump_json(), encoding="utf-8")
    assert "12 rows are neither dropped nor used nor set aside" in render(made).text


def test_an_evaluation_in_which_no_pair_was_left_has_no_accuracy(made: MadeRun) -> None:
    evaluation = reward_model_evaluation()
    empty = evaluation.files[2].model_copy(update={"name": "validation"})
    path = made.folder(StageName.EVALUATE_REWARD_MODEL) / REWARD_MODEL_EVALUATION_FILE
    path.write_text(
        evaluation.model_copy(update={"files": (empty,), "samples": ()}).model_dump_json(), encoding="utf-8"
    )
    page = render(made)
    assert "no pair was left" in page.text
    assert "91.3 %" not in page.text


def test_values_that_were_not_finite_are_named_under_the_curves(made: MadeRun) -> None:
    path = made.folder(StageName.TRAIN_POLICY) / CURVES_FILE
    with path.open("w", encoding="utf-8") as stream:
        stream.write('{"type": "metrics", "step": 51, "values": {}, "non_finite": {"kl": "inf"}}\n')
    assert "kl was inf at step 51" in render(made).text


def test_curves_survive_a_cut_line_and_a_resume_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / CURVES_FILE
    path.write_text(
        '{"step": 1, "values": {"loss": 3}}\n{"step": 2, "values": {"loss": 2}}\n'
        '{"step": 2, "values": {"loss": 1.5}}\n["not an event"]\n{"step": 3, "val',
        encoding="utf-8",
    )
    assert read_curves(path).get("loss") == ((1, 3.0), (2, 1.5))


def test_a_running_mean_uses_fewer_points_at_the_ends() -> None:
    assert running_mean([0, 3, 6], 3) == [1.5, 3, 4.5]


def test_stages_that_found_different_hardware_are_shown_apart(made: MadeRun) -> None:
    first, second, *rest = made.pipeline.measured
    other = MeasuredContract.model_validate_json(second[1]).model_copy(update={"num_cpus": 64})
    page = render(
        made, made.pipeline.model_copy(update={"measured": (first, (second[0], other.model_dump_json()), *rest)})
    )
    assert "AMD EPYC 7B13, 2 usable" in page.text
    assert "AMD EPYC 7B13, 64 usable" in page.text
    assert "not enforced" in page.text


def test_without_a_pipeline_record_there_is_no_report(made: MadeRun) -> None:
    context = made.context()
    (made.root / "pipeline.json").write_text('{"run_id": 1}', encoding="utf-8")
    with pytest.raises(BadDataError, match=r"pipeline\.json cannot be read"):
        write_report.run(context)
    (made.root / "pipeline.json").unlink()
    with pytest.raises(MissingPrerequisiteError, match="pipeline"):
        write_report.run(context)


def test_the_markdown_carries_verdict_figures_and_stages_and_no_raw_markup(made: MadeRun) -> None:
    failed = stage_record(StageName.TRAIN_POLICY, made.root, status="failed", message=f"bad | {ATTACK}\nsecond line")
    context = made.context(pipeline=with_stages(made.pipeline, failed), title="RLHF run")
    write_report.run(context)
    text = markdown(context)
    assert "❌ **train_policy failed.**" in text
    assert "| Reward model accuracy | 91.3 % | 89.4 to 93.2 % | n = 812 held-out pairs | measured |" in text
    assert "<script" not in text and "![" not in text
    assert "bad \\| &lt;/style&gt;" in text


def _plant(made: MadeRun, text: str, *, copies: int = 1) -> None:
    """Put `text` into every place of the artifacts that a dataset or a model can fill."""
    path = made.folder(StageName.EVALUATE_REWARD_MODEL) / REWARD_MODEL_EVALUATION_FILE
    evaluation = reward_model_evaluation()
    turn = (Message(role="user", content=text),)
    update = {"prompt": turn, "chosen": text, "rejected": text, "domain": text}
    samples = tuple(evaluation.samples[0].model_copy(update=update) for _ in range(copies))
    domains = tuple(metric.model_copy(update={"name": text}) for metric in evaluation.files[0].by_domain)
    files = (evaluation.files[0].model_copy(update={"by_domain": domains, "origin": text}), *evaluation.files[1:])
    path.write_text(
        evaluation.model_copy(update={"samples": samples, "files": files}).model_dump_json(), encoding="utf-8"
    )
    judged = policy_evaluation()
    beside = judged.samples[0].model_copy(update={"prompt": turn, "policy": text, "reference": text})
    path = made.folder(StageName.EVALUATE_POLICY) / POLICY_EVALUATION_FILE
    path.write_text(judged.model_copy(update={"samples": (beside,) * copies}).model_dump_json(), encoding="utf-8")
    path = made.folder(StageName.FILTER_DATASET) / FUNNEL_FILE
    rows = funnel()
    step = rows.steps[0].model_copy(update={"dropped_by_domain": ((text, 58),), "examples": (text,)})
    changed = rows.model_copy(update={"steps": (step, *rows.steps[1:]), "sources": (text,)})
    path.write_text(Funnel.model_validate(changed.model_dump()).model_dump_json(), encoding="utf-8")
