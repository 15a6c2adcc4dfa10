"""A person with a mouse starts, watches, cancels, retries and decides about runs on Prefect's pages."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.tiny_project import TinyProject
from integration.served_project import ServedProject
from playwright.sync_api import Browser, ViewportSize, expect
from ui.pages import PAGE_LIMIT_MS, PrefectPages, remember_login

from containers.contracts.names import StageName
from flows.servers.local import ServerSettings, local_servers

pytestmark = [pytest.mark.browser, pytest.mark.stages]

TRAIN = StageName.TRAIN_REWARD_MODEL
# Ten times what an idle machine needs.
RUN_LIMIT_S = 600
STATE_LIMIT_S = 180
# What every run of the first test's reward model shares, so that the others find it in the store.
SHORT = "train_reward_model.schedule.max_steps=8"
LEARNING_RATE = "0.002"
LAST_STAGE = "evaluate_reward_model"
# Narrower, Prefect hides a deployment's runs under a tab; and of a long list it draws only what is in sight.
VIEWPORT = ViewportSize(width=1280, height=1800)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[ServedProject]:
    """One project, served; the runs share a store."""
    folder = TinyProject.make(tmp_path_factory.mktemp("mouse") / "project", project).folder
    with local_servers(ServerSettings(state_dir=folder / "outputs/.servers"), say=lambda text: None) as servers:
        served = ServedProject(folder, servers)
        try:
            served.serve()
            yield served
        finally:
            served.kill_what_is_left()


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("RLHF_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def prefect(browser: Browser, served: ServedProject, screenshots: Path) -> Iterator[PrefectPages]:
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(PAGE_LIMIT_MS)
    remember_login(context, served.login)
    yield PrefectPages(context.new_page(), served.servers.prefect_ui_url, screenshots)
    context.close()


@pytest.fixture(scope="module")
def finished(browser: Browser, served: ServedProject, screenshots: Path) -> str:
    """The address of a run that a person filled in, started and saw to its end."""
    page = browser.new_page(viewport=VIEWPORT)
    page.set_default_timeout(PAGE_LIMIT_MS)
    remember_login(page.context, served.login)
    prefect = PrefectPages(page, served.servers.prefect_ui_url, screenshots)
    prefect.page.goto(f"{prefect.url}/deployments")
    prefect.page.get_by_role("link", name="rlhf-retrain").first.wait_for()
    prefect.shot("01-deployments", height=660)
    prefect.open_form("rlhf-pipeline")
    for title, value in {
        "start_from": "tiny",
        "save_as": "first",
        "reward_model_learning_rate": LEARNING_RATE,
        "until": LAST_STAGE,
    }.items():
        prefect.fill(title, value)
    prefect.add_setting(SHORT)
    prefect.field("start_from").scroll_into_view_if_needed()
    prefect.shot("02-form")
    run = prefect.send_form()
    with served.held(TRAIN, run=run, timeout_s=RUN_LIMIT_S):  # the training may take less time than the pages
        prefect.open_new_run(run)
        prefect.expect_state("Running", within_s=STATE_LIMIT_S)
        prefect.open_tab("Task Runs")
        prefect.expect_task(TRAIN, "Running", within_s=STATE_LIMIT_S)
        prefect.expect_completed_nodes(within_s=STATE_LIMIT_S)
        prefect.shot("03-running")
    prefect.expect_state("Completed", within_s=RUN_LIMIT_S)
    prefect.open_tab("Task Runs")
    for name in ("check_system", "filter_dataset", "build_base_model", TRAIN, LAST_STAGE, "write_report"):
        prefect.expect_task(name, "Completed", within_s=STATE_LIMIT_S)
    prefect.shot("04-completed")
    address = prefect.page.url
    page.close()
    return address


def ask(prefect: PrefectPages, run_name: str, *, minimum_accuracy: str) -> None:
    """Start a run whose gate asks a person, and wait until it is suspended."""
    prefect.open_form("rlhf-pipeline")
    for title, value in {
        "start_from": "tiny",
        "save_as": run_name,
        "reward_model_learning_rate": LEARNING_RATE,
        "minimum_accuracy": minimum_accuracy,
        "approval": "required",
        "until": LAST_STAGE,
    }.items():
        prefect.fill(title, value)
    prefect.add_setting(SHORT)
    prefect.submit_run()
    prefect.expect_state("Suspended", within_s=RUN_LIMIT_S)


def test_the_form_offers_choices_and_says_what_each_field_means(prefect: PrefectPages) -> None:
    prefect.open_form("rlhf-pipeline")
    assert {"demo", "own-data", "tiny"} <= set(prefect.choices("start_from"))
    assert "7x48gb" in prefect.choices("gpu_profile")
    rate = prefect.field("reward_model_learning_rate").inner_text()
    assert "Peak learning rate" in rate and "More than 0" in rate and "Empty: as in the run config" in rate


def test_a_learning_rate_below_zero_is_refused_by_the_form(prefect: PrefectPages) -> None:
    prefect.open_form("rlhf-pipeline")
    prefect.fill("start_from", "tiny")
    prefect.fill("reward_model_learning_rate", "-1")
    prefect.submit()
    expect(prefect.told).to_contain_text("'reward_model_learning_rate'")
    expect(prefect.told).to_contain_text("-1 is less than or equal to the minimum of 0")
    prefect.shot("05-refused")
    assert prefect.page.url.partition("?")[0].endswith("/run"), "the form is left"


def test_a_form_without_a_run_to_start_from_says_so_at_the_field(prefect: PrefectPages) -> None:
    prefect.open_form("rlhf-pipeline")
    prefect.submit()
    expect(prefect.field("start_from")).to_contain_text("'start_from' is a required property")


def test_an_unknown_setting_fails_with_the_right_name_before_any_stage(prefect: PrefectPages) -> None:
    prefect.open_form("rlhf-pipeline")
    prefect.fill("start_from", "tiny")
    prefect.add_setting("train_policy.betta=0.1")
    prefect.add_setting("gpu_profile=9x9gb")
    prefect.add_setting("maths", under="rewards")
    prefect.submit_run()
    prefect.expect_state("Failed", within_s=RUN_LIMIT_S)
    log = prefect.open_tab("Logs")
    expect(log).to_contain_text("train_policy.betta: unknown key. Did you mean `beta`?")
    expect(log).to_contain_text("Did you mean `math`? (from the field rewards)")
    prefect.shot("06-mistakes", height=760)
    assert "Traceback" not in log.inner_text()
    expect(prefect.page.get_by_text("This flow run did not generate any task or subflow runs")).to_be_attached()


def test_a_stage_shows_its_figures_and_leads_to_its_curves_in_mlflow(prefect: PrefectPages, finished: str) -> None:
    prefect.page.goto(finished)
    prefect.open_artifact("train-reward-model")
    expect(prefect.page.get_by_role("cell", name="Validation accuracy")).to_be_visible()
    picture = prefect.page.get_by_alt_text("Loss")
    assert picture.evaluate("image => image.naturalWidth") > 0
    prefect.shot("07-stage")
    mlflow = prefect.follow("This stage in MLflow")
    expect(mlflow.get_by_role("heading", name=TRAIN)).to_be_visible(timeout=PAGE_LIMIT_MS)
    expect(mlflow.get_by_role("link", name="loss", exact=True)).to_be_visible(timeout=PAGE_LIMIT_MS)
    mlflow.screenshot(path=prefect.screenshots / "08-mlflow-stage.png")
    back = mlflow.get_by_role("link", name="The run in Prefect").get_attribute("href")
    assert back is not None
    prefect.page.goto(back)
    prefect.expect_state("Completed", within_s=STATE_LIMIT_S)


def test_the_run_leads_to_mlflow_with_the_report(prefect: PrefectPages, finished: str) -> None:
    prefect.page.goto(finished)
    prefect.open_artifact("mlflow")
    mlflow = prefect.follow("The run in MLflow")
    expect(mlflow.get_by_role("heading", name="RLHF run: first")).to_be_visible(timeout=PAGE_LIMIT_MS)
    expect(mlflow.get_by_role("cell", name="Reward model accuracy")).to_be_visible(timeout=PAGE_LIMIT_MS)
    mlflow.screenshot(path=prefect.screenshots / "09-mlflow-run.png")


def test_cancel_stops_the_training_and_retry_reuses_what_was_finished(
    prefect: PrefectPages, served: ServedProject, finished: str
) -> None:
    reused = (StageName.FILTER_DATASET, StageName.BUILD_BASE_MODEL)
    served.lend("stopped", *reused)
    prefect.open_form("train-reward-model")
    for title, value in {"start_from": "tiny", "save_as": "stopped"}.items():
        prefect.fill(title, value)
    for setting in ("run.store_dir=outputs/stopped-store", "train_reward_model.schedule.max_steps=120"):
        prefect.add_setting(setting)
    run = prefect.send_form()
    served.wait_for_step("stopped", TRAIN, step=5, timeout_s=RUN_LIMIT_S)
    with served.held(TRAIN, run=run) as training:  # or a fast machine would end the training before the cancel is there
        prefect.open_new_run(run)
        prefect.open_tab("Task Runs")
        prefect.expect_task(TRAIN, "Running", within_s=STATE_LIMIT_S)
        prefect.confirm("Cancel")
        expect(prefect.page.get_by_role("dialog")).to_have_count(0)
        served.wait_until_told_to_end(training)
    prefect.expect_state("Cancelled", within_s=STATE_LIMIT_S)
    prefect.expect_task(TRAIN, "Cancelled", within_s=STATE_LIMIT_S)
    prefect.shot("10-cancelled")

    prefect.press("Retry").get_by_role("button", name="Retry").click()
    prefect.expect_state("Completed", within_s=RUN_LIMIT_S)
    prefect.open_tab("Task Runs")
    for stage in reused:
        prefect.expect_task(stage, "Reused", within_s=STATE_LIMIT_S)
    prefect.expect_task(TRAIN, "Completed", within_s=STATE_LIMIT_S)
    prefect.shot("11-retried")
    assert served.steps("stopped", TRAIN).count(1) == 1, "the training began again"


def test_a_person_approves_at_a_gate_and_the_run_goes_on(
    prefect: PrefectPages, served: ServedProject, finished: str
) -> None:
    ask(prefect, "approved", minimum_accuracy="0.01")
    form = prefect.press("Resume")
    expect(form).to_contain_text("meets every rule of its gate")
    expect(form).to_contain_text("on 384 pairs of 48 prompts")
    expect(form).to_contain_text("wanted interval from 1.0 % on")
    expect(form.get_by_role("link", name="the report")).to_be_visible()
    prefect.fill("Decision", "approve")
    prefect.fill("Reason", "good enough to train a policy on")
    prefect.fill("Your name", "Ada")
    prefect.shot("12-approve")
    prefect.fill("Decision", "reject")
    prefect.fill("Reason", "")
    prefect.submit()
    expect(prefect.told).to_contain_text("'reason'")  # who rejects says why
    prefect.fill("Decision", "approve")
    prefect.send_decision()
    prefect.expect_state("Completed", within_s=RUN_LIMIT_S)
    assert "approved by Ada" in (served.folder / "outputs/approved/report.html").read_text(encoding="utf-8")


def test_a_person_rejects_at_a_gate_and_the_run_ends_saying_who_and_why(
    prefect: PrefectPages, served: ServedProject, finished: str
) -> None:
    ask(prefect, "rejected", minimum_accuracy="1.0")
    form = prefect.press("Resume")
    expect(form).to_contain_text("does not meet every rule of its gate")
    prefect.fill("Decision", "reject")
    prefect.fill("Reason", "far from it")
    prefect.fill("Your name", "Grace")
    prefect.shot("13-reject")
    prefect.send_decision()
    prefect.expect_state("Failed", within_s=RUN_LIMIT_S)
    expect(prefect.open_tab("Logs")).to_contain_text("rejected by Grace")
    prefect.shot("14-rejected")
    assert "far from it" in (served.folder / "outputs/rejected/report.html").read_text(encoding="utf-8")
