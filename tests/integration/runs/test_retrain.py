"""Retraining on a real MLflow and Prefect: the first model reigns, better data replace it, poison does not.

The steps build on each other, as the weeks of a schedule do, so they are taken once and looked at by several tests.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from retrain_project import LABELLED, MODEL, NAME, Project, Step

from containers.contracts.names import StageName

pytestmark = [pytest.mark.slow, pytest.mark.stages]


@pytest.fixture(scope="module")
def project_folder(served: Path) -> Iterator[Project]:
    project = Project(served)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, project.data)
        yield project


@pytest.fixture(scope="module")
def first_steps(project_folder: Project) -> dict[str, Step]:
    """The first week of a schedule, and a second one in which nothing is new."""
    project = project_folder
    project.use(project.noisy(), project.good)
    return {"first": project.take("retrain"), "nothing new": project.take("retrain")}


@pytest.fixture(scope="module")
def steps(first_steps: dict[str, Step], project_folder: Project) -> dict[str, Step]:
    """Those and the weeks after them, in order."""
    project, steps = project_folder, dict(first_steps)
    project.use(project.good.train.read_text(encoding="utf-8"), project.good)
    both = project.take_all([project.start("retrain"), project.start("retrain")])
    steps["trained"], steps["waited"] = sorted(both, key=lambda step: "Retraining: Run" in step.said)

    project.use(project.poisoned.train.read_text(encoding="utf-8"), project.poisoned)
    steps["poisoned"] = project.take("retrain")
    steps["refused"] = project.take("retrain", "--set", LABELLED)
    return steps


def test_the_first_certified_model_becomes_champion(first_steps: dict[str, Step]) -> None:
    first = first_steps["first"]
    assert first.exit_code == 0, first.said
    assert first.champion == 1
    assert "version 1 is champion now: it is the first that passed its gate" in first.said
    assert first.record.frozen is not None and first.record.frozen.count > 300
    assert f"**Version 1 of {MODEL} is champion now.**" in first.report


def test_with_nothing_new_it_ends_in_seconds_and_starts_nothing(first_steps: dict[str, Step]) -> None:
    step = first_steps["nothing new"]
    assert step.exit_code == 0, step.said
    assert "Nothing changed since the last decision" in step.said
    assert step.attempts_after == step.attempts_before
    assert "Prefect" not in step.said  # not even a server was asked for
    assert step.record == first_steps["first"].record


def test_better_data_move_the_champion_with_figures(steps: dict[str, Step], project_folder: Project) -> None:
    step = steps["trained"]
    assert step.exit_code == 0, step.said
    assert step.champion == 2
    decision = next(item for item in step.record.decisions if item.version == 2)
    assert decision.kind == "won" and decision.comparison is not None
    (frozen,) = decision.comparison.contests
    assert frozen.difference is not None and frozen.difference.ci_low is not None and frozen.difference.ci_low > 0
    assert frozen.p_value < 0.05
    assert decision.text in step.said
    assert f"**Version 2 of {MODEL} is champion now.**" in step.report
    assert "| the frozen pairs (accuracy) | " in step.report
    assert f"The alias “champion” of {MODEL} in MLflow was moved from version 1 to version 2." in step.report


def test_two_at_once_train_once_and_the_second_says_behind_whom_it_waited(steps: dict[str, Step]) -> None:
    waited = steps["waited"]
    assert waited.exit_code == 0, waited.said
    assert f"Retraining: Run {NAME} (retraining) (process " in waited.said
    assert "Nothing changed since the last decision" in waited.said
    assert "train_reward_model" not in waited.said
    # filter, base model, training, certificate, champion and challenger on the frozen pairs, report.
    assert waited.attempts_after - waited.attempts_before == 7


def test_poisoned_data_do_not_move_the_champion_although_they_pass_their_own_gate(
    steps: dict[str, Step], project_folder: Project
) -> None:
    step = steps["poisoned"]
    assert step.exit_code == 0, step.said
    assert step.champion == 2
    assert "version 2 stays champion: version 3 is worse beyond chance" in step.said
    assert f"**Version 2 of {MODEL} stays champion.**" in step.report
    assert f"The alias “champion” of {MODEL} in MLflow was not moved: it names version 2." in step.report
    markdown = project_folder.prefect_artifacts(f"{MODEL}-decision")
    assert any("worse beyond chance" in text and "| the frozen pairs" in text for text in markdown), markdown


def test_a_challenger_that_misses_its_gate_is_compared_with_nothing(steps: dict[str, Step]) -> None:
    step = steps["refused"]
    assert step.exit_code == 0, step.said
    assert step.champion == 2
    assert "not compared, since it did not pass its gate (accuracy on labelled" in step.said
    assert step.record.decisions[-1].kind == "refused"
    assert f"Version 2 of {MODEL} stays champion" in step.report
    # The pairs looked through for the new suite, its certificate and the report; all else was reused, for the pairs
    # stayed what they were, and the frozen pairs were not touched.
    assert step.attempts_after - step.attempts_before == 3


def test_mlflow_shows_champion_challenger_and_why(steps: dict[str, Step], project_folder: Project) -> None:
    from mlflow import MlflowClient

    assert (project_folder.alias(), project_folder.alias("challenger")) == ("2", "3")
    uri = project_folder.server("mlflow")
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    version = client.get_model_version_by_alias(MODEL, "champion")
    assert "is champion now" in version.tags["rlhf.reason"]
    assert Path(version.tags["rlhf.artifact"], "MANIFEST.json").is_file()
    assert f"{NAME}/train.jsonl" in version.tags["rlhf.dataset"]
    (model,) = client.search_logged_models(
        [client.get_run(version.run_id).info.experiment_id], "tags.`rlhf.version`='2'"
    )
    files = {item.path for item in client.list_logged_model_artifacts(model.model_id)}
    assert {"MANIFEST.json", "certificate.json", "adapter", "version.json", "decisions.json"} <= files


def test_people_move_the_champion_by_hand_and_bad_moves_are_refused(
    steps: dict[str, Step], project_folder: Project
) -> None:
    project = project_folder
    why = ("--by", "Ada", "--reason", "rewards flattery")
    back = project.take("rollback", *why)
    assert (back.exit_code, back.champion, project.alias()) == (0, 1, "1"), back.said
    again = project.take("rollback", *why)
    assert (again.exit_code, again.champion) == (1, 1) and "no champion before version 1" in again.said
    unknown = project.take("promote", "--version", "9", *why)
    assert unknown.exit_code == 1 and "has no version 9. Versions: 1, 2, 3" in unknown.said

    version = back.record.version(2)
    assert version is not None
    folder = project.store / "artifacts" / StageName.TRAIN_REWARD_MODEL / version.model.key
    victim = folder / "merged" / "config.json"
    before = victim.read_bytes()
    victim.write_bytes(before + b" ")
    damaged = project.take("promote", "--version", "2", *why)
    assert (damaged.exit_code, damaged.champion) == (1, 1)
    assert f"{victim} has" in damaged.said
    victim.write_bytes(before)
    forth = project.take("promote", "--version", "2", *why)
    assert (forth.exit_code, forth.champion, project.alias()) == (0, 2, "2"), forth.said
    shown = project.take("champion")
    assert "version 2 was promoted by hand, by Ada: rewards flattery" in shown.said


def test_a_policy_is_retrained_against_the_champion_and_compared_with_the_champion_policy(
    steps: dict[str, Step], project_folder: Project
) -> None:
    project = project_folder
    project.use(project.good.train.read_text(encoding="utf-8"), project.good)
    policies = ("--set", "retrain.models=reward_model_and_policy")
    decided = len(project.record().decisions)
    first = project.take("retrain", *policies)
    assert first.exit_code == 0, first.said
    record = project.record(f"{NAME}-policy")
    assert record.champion is not None and record.champion.number == 1
    assert record.champion.reward_model == f"{MODEL} version {first.champion}"

    nothing = project.take("retrain", *policies)
    assert "Nothing changed since the last decision" in nothing.said and nothing.exit_code == 0

    other = project.take("retrain", *policies, "--set", "train_policy.optimizer.learning_rate=3.0e-3")
    assert other.exit_code == 0, other.said
    decision = project.record(f"{NAME}-policy").decisions[-1]
    assert decision.version == 2 and decision.comparison is not None
    (contest,) = decision.comparison.contests
    assert (contest.name, contest.measure) == ("the frozen prompts", "win rate")
    assert contest.count > 0
    assert decision.text in other.said
    assert f"## {NAME}-policy: " in other.report and "| the frozen prompts (win rate) | " in other.report
    # The reward model was decided on once: its data came back, and then only the policy was new.
    assert len(other.record.decisions) == decided + 1
