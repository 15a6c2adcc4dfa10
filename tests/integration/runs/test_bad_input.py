"""Bad data, models and machines as a user has them, through the real command: one clear message, nothing left."""

import json
import shutil
import time
from pathlib import Path

import pytest
from short_runs import CONFIG, failures, read_config, rlhf, traces, write_config

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


def rows(**columns: object) -> str:
    return (json.dumps(columns) + "\n") * 200


def test_the_check_names_every_file_that_is_missing_and_writes_nothing(folder: Path) -> None:
    (folder / "empty.jsonl").touch()
    ended = rlhf(
        folder,
        "check",
        "dataset.train=nowhere.jsonl",
        "evaluate_reward_model.suites=[{name: pairs, path: empty.jsonl}]",
        f"run.output_dir={CONFIG}/below",
    )
    assert ended.returncode == 1
    found = failures(ended)
    assert "nowhere.jsonl does not exist" in found
    assert "empty.jsonl is empty (0 bytes)" in found
    assert "short.yaml is a file" in found
    assert "3 of " in ended.stdout
    assert traces(folder) == set()


def test_the_check_says_what_it_found_also_where_the_data_are_too_few_to_plan_with(folder: Path) -> None:
    (folder / "empty.jsonl").touch()
    tokenizer = ("tokenizer_file=nowhere.tiktoken", "build_base_model.vocabulary_size=null")
    ended = rlhf(folder, "check", "dataset.train=empty.jsonl", *tokenizer)
    assert ended.returncode == 2
    found = failures(ended)
    assert "empty.jsonl is empty (0 bytes)" in found
    assert "nowhere.tiktoken does not exist" in found
    assert "filter_dataset: empty.jsonl gives at most 0 pairs, one for each line" in ended.stderr


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("folder.jsonl", "holds no data file"),
        ("/dev/zero", "is a device, pipe or socket"),
        ("text.jsonl", "none of its first 200 lines is a JSON object; line 1 (no JSON at all) is no JSON"),
        ("columns.jsonl", "has no schema that is known here. Columns found: foo, bar"),
    ],
)
def test_what_is_no_file_of_preferences_is_refused_by_the_check(folder: Path, train: str, said: str) -> None:
    (folder / "folder.jsonl").mkdir()
    (folder / "text.jsonl").write_text("no JSON at all\n" * 200, encoding="utf-8")
    (folder / "columns.jsonl").write_text(rows(foo=1, bar=2), encoding="utf-8")
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
    assert "--set 'base_model={path: FOLDER}'" in failures(ended)


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


# Below, the stages really run.


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
        ("no-json", rows(**GERMAN) + "no JSON\n" * 10, ["10 of 210 rows (4.8%)", "invalid_json: 10", ":201 no JSON"]),
        ("bad-label", rows(**GERMAN | {"overall_preference": 7}), ["200 of 200 rows", "label_out_of_range: 200"]),
        ("german", rows(**GERMAN, language="german"), ["minimum_train_pairs: 100", "language_column", "german 200"]),
        ("in-disguise", rows(**GERMAN, language="english"), ["minimum_train_pairs: 100", "detected_language"]),
    ],
    ids=["some lines no JSON", "label out of range", "another language", "another language under a wrong name"],
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
