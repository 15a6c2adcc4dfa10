"""Bad input as a user gives it, through the real command: one clear message, a non-zero exit, nothing to clean up."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from flows.demo_data import write_demo_data
from flows.local_servers import ServerSettings, local_servers

# No daemon and no hub answers, whatever this machine has; rich must not wrap what is searched for.
NO_OUTSIDE = {"DOCKER_HOST": "unix:///nonexistent.sock", "HF_ENDPOINT": "http://127.0.0.1:9", "COLUMNS": "400"}
CONFIG = "configs/runs/short.yaml"
SHAPE = {
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 100,
}


def prepare(folder: Path, project: Path) -> Path:
    """A project folder with a short run; its path."""
    shutil.copytree(project / "configs", folder / "configs")
    config = yaml.safe_load((project / "configs/runs/demo.yaml").read_text(encoding="utf-8"))
    config["runtime"] = {"kind": "process"}
    config["tracking"] = {"prefect_port": 0, "mlflow_port": 0}
    config["train_sft"]["schedule"] = {"max_steps": 2000, "eval_steps": 500}
    write_config(folder, config)
    write_demo_data(folder / "outputs/demo/data")
    return folder


def write_config(folder: Path, config: object) -> None:
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def read_config(folder: Path) -> dict[str, dict[str, object]]:
    config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    assert isinstance(config, dict)
    return config


@pytest.fixture
def folder(tmp_path: Path, project: Path) -> Path:
    return prepare(tmp_path, project)


def rlhf(folder: Path, command: str, *changes: str) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        command_line(command, *changes),
        cwd=folder,
        env=os.environ | NO_OUTSIDE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in ended.stdout + ended.stderr
    return ended


def command_line(command: str, *changes: str) -> list[str]:
    overrides = [word for change in changes for word in ("--set", change)]
    return [sys.executable, "-m", "flows.cli", command, "-c", CONFIG, *overrides]


def failures(checked: subprocess.CompletedProcess[str]) -> str:
    """The failed rows of `rlhf check`, each with its advice."""
    lines = checked.stdout.splitlines()
    found = [f"{line}\n{after}" for line, after in zip(lines, [*lines[1:], ""], strict=True) if "FAILURE" in line]
    return "\n".join(found)


def traces(folder: Path) -> set[str]:
    """Everything in `outputs` beside the data of the demo."""
    outputs = folder / "outputs"
    return {str(path.relative_to(outputs)) for path in outputs.rglob("*") if "data" not in path.parts} - {"demo"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run:\n  name: x\n  seed: [1, 2\n", "is no valid YAML: line 4, column 1"),
        ("run:\n\tname: x\n", "A tab stands there: YAML indents with spaces."),
        ("", "holds nothing"),
        ("run: {name: a, name: b}\n", "run.name: given twice"),
        ("run: !!python/object/apply:os.system [touch hacked]\n", "could not determine a constructor"),
        ("run: " + "[" * 500 + "]" * 500 + "\n", "nested deeper than 32 levels"),
    ],
    ids=["open bracket", "tab", "empty file", "key twice", "python object", "deep nesting"],
)
def test_a_broken_file_is_refused_with_its_place_and_nothing_is_started(folder: Path, text: str, said: str) -> None:
    (folder / CONFIG).write_text(text, encoding="utf-8")
    ended = rlhf(folder, "run")
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) <= 2
    assert ended.stdout == ""
    assert not (folder / "hacked").exists()
    assert traces(folder) == set()


def test_every_mistake_of_a_configuration_is_told_at_once(folder: Path) -> None:
    mistakes = {
        "train_policy.betta=1": "train_policy.betta: unknown key. Did you mean `beta`?",
        "train_policy.num_generations=1": "train_policy.num_generations: 1 is too few; wanted at least 2",
        "train_policy.beta=.nan": "train_policy.beta: nan found, wanted a finite number",
        "run.name=../../x": "run.name: `../../x` does not look as wanted",
        "gpu_profile=nope": "gpu_profile: `nope`: no such profile",
        "train_sft.schedule.max_steps=few": "train_sft.schedule.max_steps: `few` found, wanted a whole number",
    }
    ended = rlhf(folder, "run", *mistakes)
    assert ended.returncode == 2
    assert "has 6 mistakes" in ended.stderr
    for change, said in mistakes.items():
        assert said in ended.stderr
        assert f"(from --set {change})" in ended.stderr
    assert traces(folder) == set()


def test_a_schedule_that_the_data_are_too_few_for_is_refused_before_anything_starts(folder: Path) -> None:
    ended = rlhf(folder, "run", "train_reward_model.schedule={num_epochs: 0.5, eval_steps: 5000}")
    assert ended.returncode == 2
    assert "eval_steps 5000 would never evaluate" in ended.stderr
    assert "the run has " in ended.stderr
    assert traces(folder) == set()


def test_the_check_names_every_file_that_is_missing_and_writes_nothing(folder: Path) -> None:
    (folder / "empty.jsonl").touch()
    ended = rlhf(
        folder,
        "check",
        "dataset.train=nowhere.jsonl",
        "evaluate_reward_model.pair_files=[{name: pairs, path: empty.jsonl}]",
        f"run.output_dir={CONFIG}/below",
    )
    assert ended.returncode == 1
    found = failures(ended)
    assert "nowhere.jsonl does not exist" in found
    assert "empty.jsonl is empty (0 bytes)" in found
    assert "short.yaml is a file" in found
    assert "3 of " in ended.stdout
    assert traces(folder) == set()


@pytest.mark.parametrize(
    ("train", "said"), [("folder.jsonl", "holds no data file"), ("/dev/zero", "is a device, pipe or socket")]
)
def test_what_is_no_data_file_is_refused_before_it_is_read(folder: Path, train: str, said: str) -> None:
    (folder / "folder.jsonl").mkdir()
    ended = rlhf(folder, "check", f"dataset.train={train}")
    assert ended.returncode == 1
    assert said in failures(ended)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (None, "does not exist"),
        (("notes.txt",), "has no config.json, so it is no model folder"),
        (("config.json", "tokenizer.json", "model.safetensors"), "has no chat template"),
        (("config.json", "tokenizer.json", "chat_template.jinja", "pytorch_model.bin"), "only pytorch_model.bin"),
    ],
    ids=["nothing there", "no model", "no chat template", "pickled weights"],
)
def test_a_folder_that_is_no_usable_model_is_refused_with_what_it_lacks(
    folder: Path, files: tuple[str, ...] | None, said: str
) -> None:
    if files is not None:
        (folder / "model").mkdir()
        for name in files:
            (folder / "model" / name).write_text(json.dumps(SHAPE), encoding="utf-8")
    start_from_a_model(folder)
    ended = rlhf(folder, "check", "base_model.path=model")
    assert ended.returncode == 1
    assert said in failures(ended)


def test_a_hub_that_does_not_answer_is_said_within_half_a_minute(folder: Path) -> None:
    start_from_a_model(folder)
    began = time.monotonic()
    ended = rlhf(folder, "check", "base_model={hub_id: nobody/nothing, revision: main}")
    assert time.monotonic() - began < 30
    assert ended.returncode == 1
    assert "nobody/nothing@main: the hub cannot be read" in failures(ended)
    assert "set base_model to the local path" in failures(ended)


def start_from_a_model(folder: Path) -> None:
    config = read_config(folder)
    del config["build_base_model"]
    write_config(folder, config)


def test_docker_without_a_daemon_is_refused_with_the_way_out(folder: Path) -> None:
    ended = rlhf(folder, "check", "runtime.kind=docker")
    assert ended.returncode == 1
    assert "Docker daemon" in failures(ended)
    assert "or use the process runtime" in failures(ended)


def test_gpus_that_this_machine_does_not_have_are_a_failure_not_a_crash(folder: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")
    ended = rlhf(folder, "check", "gpu_profile=1x48gb")
    assert ended.returncode == 1
    assert "there is no NVIDIA driver here" in failures(ended)


# Below, the stages really run. The servers start once and every run here uses them.


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[Path]:
    folder = prepare(tmp_path_factory.mktemp("bad-input"), project)
    with local_servers(ServerSettings(state_dir=folder / "outputs" / ".servers"), say=lambda text: None):
        yield folder


def rows(**columns: object) -> str:
    return (json.dumps(columns) + "\n") * 200


GERMAN = {
    "context": [{"role": "user", "content": "Bitte sage mir, welches Tier die Nachbarin in ihrem Haus hält."}],
    "response1": "Die Nachbarin hält seit vielen Jahren eine kleine Katze.",
    "response2": "Das möchte ich dir heute leider nicht sagen, mein lieber Freund.",
    "overall_preference": -2,
}


@pytest.mark.slow
@pytest.mark.stages
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("unknown", rows(foo=1, bar=2), ["no schema that is known here", "foo", "HelpSteer3: context"]),
        ("no-json", "no JSON at all\n" * 3, ["3 of 3 rows (100.0%) are malformed", "invalid_json: 3", ":1 no JSON"]),
        ("bad-label", rows(**GERMAN | {"overall_preference": 7}), ["200 of 200 rows", "label_out_of_range: 200"]),
        ("german", rows(**GERMAN, language="german"), ["minimum_train_pairs: 100", "language_column", "german 200"]),
        ("in-disguise", rows(**GERMAN, language="english"), ["minimum_train_pairs: 100", "detected_language"]),
    ],
    ids=["unknown schema", "no JSON", "label out of range", "another language", "another language under a wrong name"],
)
def test_data_that_cannot_be_used_fail_with_the_reason_and_leave_nothing_that_looks_finished(
    served: Path, name: str, content: str, said: list[str]
) -> None:
    (served / f"{name}.jsonl").write_text(content, encoding="utf-8")
    ended = rlhf(served, "run", f"run.name={name}", f"dataset.train={name}.jsonl")
    assert ended.returncode == 1
    message = " ".join(ended.stdout.split())
    for part in said:
        assert part in message
    assert not (served / "outputs" / name / "artifacts" / "filter_dataset").exists()


@pytest.mark.slow
@pytest.mark.stages
def test_a_missing_file_stops_the_run_before_anything_is_spent(served: Path) -> None:
    ended = rlhf(served, "run", "run.name=missing", "dataset.train=nowhere.jsonl")
    assert ended.returncode == 1
    assert "The run does not start; nothing was spent." in ended.stdout
    assert "nowhere.jsonl does not exist" in ended.stdout
    assert not (served / "outputs/missing/artifacts").exists()


@pytest.mark.slow
@pytest.mark.stages
def test_ctrl_c_during_training_ends_with_130_leaves_no_process_and_the_next_run_goes_on(served: Path) -> None:
    output = served / "outputs" / "interrupted"
    changes = ("run.name=interrupted", "train_sft.schedule.eval_steps=5", "train_sft.schedule.save_steps=5")

    def interrupt_after(sign: str) -> str:
        """Start the run, press Ctrl-C once `sign` stands in the stage's log; what the run said."""
        running = subprocess.Popen(
            command_line("run", *changes),
            cwd=served,
            env=os.environ | NO_OUTSIDE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 120
            while not any(sign in log.read_text() for log in output.glob("specs/train_sft/*/*/stage.log")):
                assert running.poll() is None, running.stdout and running.stdout.read()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            os.killpg(running.pid, signal.SIGINT)
            said, _ = running.communicate(timeout=60)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.communicate()
        assert running.returncode == 130
        return str(said)

    said = interrupt_after("step 11 of 2000")
    assert "The same command goes on from the last good step." in said
    assert "Traceback" not in said
    assert stage_processes(output) == []
    assert not (output / "artifacts/train_sft").exists()
    interrupt_after("Resuming from checkpoint-")
    assert stage_processes(output) == []


def stage_processes(output: Path) -> list[int]:
    """Processes whose command line names the run's output."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(output) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
