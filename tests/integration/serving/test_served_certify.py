"""Somebody has a reward model judged from Prefect's pages: its certificate ends up there, or the reason why not."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from faults.tiny_project import TinyProject
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from served_project import ServedProject
from transformers import Qwen3ForSequenceClassification

from flows.servers.local import ServerSettings, local_servers
from tests.unit.factories.tiny_policy import tiny_config, tiny_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.stages]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[ServedProject]:
    """The tiny project with a reward model beside it that was trained elsewhere."""
    folder = TinyProject.make(tmp_path_factory.mktemp("certify") / "project", project).folder
    tokenizer = tiny_tokenizer()
    config = tiny_config(tokenizer, initializer_range=0.2, num_labels=1)
    Qwen3ForSequenceClassification(config).save_pretrained(folder / "stranger")
    tokenizer.save_pretrained(folder / "stranger")
    state_dir = folder / "outputs" / ".servers"
    with local_servers(ServerSettings(state_dir=state_dir), say=lambda text: None) as servers:
        served = ServedProject(folder, servers)
        try:
            served.serve()
            yield served
        finally:
            served.kill_what_is_left()


def shown(served: ServedProject, run: UUID) -> dict[str, str]:
    """Key and text of what the run shows."""
    only = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    return {item.key or "": str(item.data) for item in served.client.read_artifacts(artifact_filter=only)}


def test_a_model_that_was_trained_elsewhere_ends_with_its_certificate_on_the_page(served: ServedProject) -> None:
    form = {
        "start_from": "tiny",
        "reward_model": "stranger",
        "minimum_accuracy": 1.0,  # no random weights reach it: the gate is waived, never passed by luck
        "more_settings": ["evaluate_reward_model.max_length=256"],
    }
    run = served.start("certify", **form)
    assert served.ended(run) == "Completed", served.message(run)
    assert served.run(run).name == "certify stranger by tiny"
    stages = [name for name, _ in served.stages(run)]
    assert stages == ["check_system", "filter_dataset", "evaluate_reward_model", "write_report"]
    page = served.folder / "outputs/tiny-certifies-stranger/artifacts/evaluate_reward_model/certificate.html"
    assert page.is_file()
    certificate = shown(served, run)["certificate"]
    assert "certificate.html" in certificate and "test" in certificate
    assert "Waived by the fault tests" in certificate

    again = served.start("certify", **form)
    assert served.ended(again) == "Completed", served.message(again)
    assert ("evaluate_reward_model", "Reused") in served.stages(again)
    assert "certificate.html" in shown(served, again)["certificate"]


def test_a_certificate_that_misses_its_gate_is_shown_all_the_same(served: ServedProject) -> None:
    run = served.start(
        "certify",
        start_from="tiny",
        reward_model="stranger",
        minimum_accuracy=1.0,
        approval="none",
        more_settings=["evaluate_reward_model.max_length=256"],
    )
    assert served.ended(run) == "Failed"
    assert "Gate of the reward model: ✘ not passed" in shown(served, run)["certificate"]


def test_what_is_no_model_is_refused_in_words_before_any_stage(served: ServedProject) -> None:
    run = served.start("certify", start_from="tiny", reward_model="nowhere")
    assert served.ended(run) == "Failed"
    assert served.message(run).startswith("The form has 1 mistake:\n  reward_model: `nowhere` is no folder here")
    assert served.stages(run) == []
    assert shown(served, run) == {}
    assert not [line for line in served.logs(run) if "Traceback" in line]
