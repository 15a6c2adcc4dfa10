"""`rlhf judge` says what is missing, takes a name that is no path, and deletes what one person chose."""

from pathlib import Path

import pytest

from containers.contracts.configs.parts.judges import PeopleJudge
from containers.contracts.names import SAMPLED_FILE, StageName
from containers.contracts.spec import ArtifactRef
from containers.rollouts.generate import Completion
from containers.rollouts.prompts import PolicyPrompt
from containers.rollouts.sampled import Sampled, write_sampled
from flows.cli.main import main
from tasks.config.loading import load_run_config
from tasks.judges.people import PeopleChoices, ask_people
from tasks.judges.verdicts import VERDICTS_FOLDER
from tests.unit.factories.run_files import write_run

pytestmark = pytest.mark.stages

PEOPLE = {"judges": [{"type": "people", "num_pairs": 8}]}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write into `outputs` of the folder in which they start."""
    monkeypatch.chdir(tmp_path)


def with_pairs(file: Path, folder: Path) -> PeopleChoices:
    """A run that waits for people, with ten pairs."""
    config = load_run_config(file).config
    sampled = folder / "sampled"
    sampled.mkdir()
    prompts = tuple(PolicyPrompt(str(at), "", ({"role": "user", "content": f"{at}?"},), (1,)) for at in range(10))
    policy, other = (tuple(Completion((1,), (2,), f"{word} {at}", True) for at in range(10)) for word in ("yes", "no"))
    write_sampled(Sampled(prompts, policy, other, (0.0,) * 10, ""), sampled / SAMPLED_FILE)
    made = ArtifactRef(stage=StageName.SAMPLE_COMPLETIONS, key="a" * 64, path=str(sampled), digest="sha256:1")
    return ask_people(
        PeopleJudge(num_pairs=8),
        made,
        config.store_dir.resolve() / VERDICTS_FOLDER,
        run_name=config.run.name,
        output_dir=config.output_dir.resolve(),
        seed=config.run.seed,
        command="rlhf run -c again.yaml",
    )


def test_a_run_without_people_and_one_that_has_not_written_yet_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain").mkdir()
    assert main(["judge", "-c", str(write_run(tmp_path / "plain")), "--by", "ada"]) == 1
    assert "No judge of this run is people" in capsys.readouterr().err
    assert main(["judge", "-c", str(write_run(tmp_path, evaluate_policy=PEOPLE)), "--by", "ada"]) == 1
    assert "has no pair to judge yet" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--by", "--delete"])
def test_a_name_is_no_path(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    file = write_run(tmp_path, evaluate_policy=PEOPLE)
    with_pairs(file, tmp_path)
    assert main(["judge", "-c", str(file), option, "../../ada"]) == 2
    assert f"{option} '../../ada': use up to 64 letters" in capsys.readouterr().err


def test_a_person_judges_everything_is_told_how_it_goes_on_and_takes_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_run(tmp_path, evaluate_policy=PEOPLE)
    choices = with_pairs(file, tmp_path)
    monkeypatch.setattr("builtins.input", lambda text: "a")
    assert main(["judge", "-c", str(file), "--by", "ada"]) == 0
    assert "Go on with: rlhf run -c again.yaml" in capsys.readouterr().out
    assert len(choices.of("ada")) == 8
    assert main(["judge", "-c", str(file), "--show"]) == 0
    assert "ada 8 of 8" in capsys.readouterr().out
    assert main(["judge", "-c", str(file)]) == 2
    assert "Say who judges" in capsys.readouterr().err
    assert main(["judge", "-c", str(file), "--delete", "ada"]) == 0
    assert "8 choices of ada were deleted" in capsys.readouterr().out
    assert main(["judge", "-c", str(file), "--delete", "ada"]) == 1
