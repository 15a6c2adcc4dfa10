"""The command line is what people meet first: real processes, real exit codes, one message and no traceback.

Those of `warm_rlhf` have the imports behind them; the others start as a person starts them.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.warm_rlhf import WarmRlhf

from flows.cli.main import build_parser
from flows.cli.registry import COMMANDS
from tests.unit.factories.run_files import write_run


def rlhf(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_names_every_command_and_imports_nothing_heavy(project: Path) -> None:
    ran = rlhf("--help", cwd=project)
    assert ran.returncode == 0
    for name in COMMANDS:
        assert f"\n    {name}" in ran.stdout
    code = (
        "import sys, flows.cli.main; flows.cli.main.build_parser(); "
        "print([name for name in ('pydantic', 'yaml', 'rich') if name in sys.modules])"
    )
    imported = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True)
    assert imported.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_has_help_and_an_example(command: str) -> None:
    (subparsers,) = (
        action for action in build_parser([command])._actions if action.dest == "==SUPPRESS==" or action.choices
    )
    assert subparsers.choices is not None
    parser = dict(subparsers.choices)[command]
    assert f"example:\n  rlhf {command}" in parser.epilog
    for action in parser._actions:
        assert action.help, action.option_strings


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_every_command_can_be_typed(command: str, project: Path) -> None:
    words = shlex.split(f"{command} {COMMANDS[command].example}")
    assert build_parser(words).parse_args(words).run_command


@pytest.mark.waits
def test_plan_prints_the_plan(project: Path) -> None:
    ran = rlhf("plan", "-c", "configs/runs/helpsteer3-qwen3-8b.yaml", "--profile", "4x48gb", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert "96 = 2 per device x 4 rank(s) x 12 accumulated (exact)" in ran.stdout
    assert "174.6M" in ran.stdout


def test_a_wrong_configuration_ends_with_2_and_one_message(project: Path, tmp_path: Path, warm_rlhf: WarmRlhf) -> None:
    path = write_run(tmp_path, train_policy={"betta": 1, "lora": {"r": 8}})
    for command in ("plan", "run", "check", "report"):
        ran = warm_rlhf(command, "-c", str(path), cwd=project)
        assert ran.returncode == 2
        assert ran.stdout == ""
        assert ran.stderr == f"{path} has 1 mistake:\n  train_policy.betta: unknown key. Did you mean `beta`?\n"


def test_an_impossible_schedule_ends_with_2_before_anything_starts(project: Path, warm_rlhf: WarmRlhf) -> None:
    steps = [
        "--set",
        "train_reward_model.schedule.eval_steps=200",
        "--set",
        "train_reward_model.schedule.save_steps=400",
    ]
    ran = warm_rlhf("plan", "-c", "configs/runs/helpsteer3-qwen3-8b.yaml", *steps, cwd=project)
    assert ran.returncode == 2
    assert "the run has 180 steps" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_unknown_command_ends_with_2(project: Path) -> None:
    ran = rlhf("rnu", cwd=project)
    assert ran.returncode == 2
    assert "there is no command `rnu`. Did you mean `run`?" in ran.stderr


def test_demo_data_writes_three_files_and_names_them(project: Path, tmp_path: Path) -> None:
    ran = rlhf("demo-data", "--folder", str(tmp_path / "data"), "--seed", "3", cwd=project)
    assert ran.returncode == 0, ran.stderr
    written = [Path(line) for line in ran.stdout.splitlines()]
    assert [path.name for path in written] == ["train.jsonl", "validation.jsonl", "labelled_pairs.jsonl"]
    assert all(path.stat().st_size > 0 for path in written)


@pytest.mark.waits
def test_a_reader_that_leaves_early_is_no_error(project: Path) -> None:
    command = f"{sys.executable} -m flows.cli.main plan -c configs/runs/demo.yaml | true; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], cwd=project, capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout == "1\n"
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "there is no command `trian`. Did you mean `retrain`? The commands are run, check, plan"),
        (["--versoin"], "unknown option. Did you mean --version?"),
        (["run"], "-c/--config is missing: the run (example: configs/runs/demo.yaml)."),
        (["run", "-c"], "-c/--config needs a value after it: the run"),
        (
            ["run", "-c", "configs/runs/demo.yaml", "--untl", "x"],
            "rlhf run: --untl: unknown option. Did you mean --until?",
        ),
        (["run", "", "-c", "configs/runs/demo.yaml"], "rlhf run: `` is one word too many."),
        (["run", "-c", "configs/runs/demo.yaml", "c d"], "rlhf run: `c d` is one word too many."),
        (["score"], "FILE is missing: jsonl, jsonl.gz or parquet"),
        (["cache"], "action is missing: one of ls, verify and gc."),
        (["cache", "lss"], "action: `lss` is not one of ls, verify and gc. Did you mean `ls`?"),
        (["cache", "gc", "--older-than", "x"], "--older-than: `x` found, wanted a number."),
        (["run", "-c", "configs/runs/demo.yaml", "--until", "train_rm"], "Did you mean `train_reward_model`?"),
        (["run", "-c", "prefect.yaml"], "prefect.yaml is no run configuration"),
        (["run", "-c", "configs/gpu_profiles/cpu.yaml"], "is a GPU profile, not a run. Name a run with -c, and this"),
        (
            ["run", "-c", "configs"],
            "configs is a folder, not a file. Configurations that exist: configs/runs",
        ),
        (
            ["plan", "-c", "configs/runs/demo.yaml", "--set", "gpu_profile.environment.NCCL_TIMEOUT=5"],
            "gpu_profile.environment: NCCL_TIMEOUT: is read by no library. The collective time-out is "
            "collective_timeout_s in the GPU profile. (from --set gpu_profile.environment.NCCL_TIMEOUT=5)",
        ),
        (
            ["plan", "-c", "configs/runs/demo.yaml", "--set", "environment.NCCL_TIMEOUT=5"],
            "NCCL_TIMEOUT is read by no library. The collective time-out is collective_timeout_s in the GPU profile. "
            "(from --set environment.NCCL_TIMEOUT=5)",
        ),
        (
            ["plan", "-c", "configs/runs/demo.yaml", "--set", "gpu_profile.nccl.timeout=5"],
            "gpu_profile.nccl.timeout: unknown key.",
        ),
        (["score", "-m", "nope", "f.jsonl"], "The command line has 2 mistakes:"),
        (["score", "-m", "nope", "f.jsonl"], "f.jsonl does not exist"),
        (
            ["score", "-m", "nope", "f.jsonl", "--profile", "zz", "--out", "/nope/x", "--batch-size", "0"],
            "The command line has 5 mistakes:",
        ),
        (["certify", "-m", "nope", "-c", "nope.yaml"], "--model: `nope` is no folder here"),
        (["certify", "-m", "nope", "-c", "nope.yaml"], "nope.yaml does not exist"),
        (["run", "--sett", "x"], "-c/--config is missing"),
        (["run", "--sett", "x"], "--sett: unknown option. Did you mean --set?"),
        (["run", "-c", "configs/runs/demo.yaml", "--until", "train_rm"], "(from --until train_rm)"),
        (["score", "-m", "nope", "f.jsonl"], "--model: `nope` is no folder here"),
        (["demo-data", "--folder", "README.md"], "--folder README.md: README.md cannot be written"),
    ],
)
def test_what_a_newcomer_gets_wrong_is_said_in_words_with_what_was_meant(
    words: list[str], said: str, project: Path, warm_rlhf: WarmRlhf
) -> None:
    ran = warm_rlhf(*words, cwd=project)
    assert ran.returncode == 2, ran.stdout
    assert said in ran.stderr
    for raw in ("Traceback", "usage:", "invalid choice", "unrecognized arguments", "environment.0.1"):
        assert raw not in ran.stderr
    assert "prefect.yaml," not in ran.stderr


@pytest.mark.parametrize("action", ["ls", "verify", "gc"])
def test_a_store_that_is_not_there_is_no_empty_store(action: str, tmp_path: Path, warm_rlhf: WarmRlhf) -> None:
    ran = warm_rlhf("cache", action, "--store", "nope", cwd=tmp_path)
    assert ran.returncode == 2
    assert "nope does not exist. Name the run.store_dir of your runs with --store" in ran.stderr


def test_missing_demo_data_says_what_writes_it(project: Path, tmp_path: Path, warm_rlhf: WarmRlhf) -> None:
    ran = warm_rlhf("run", "-c", str(project / "configs/runs/demo.yaml"), cwd=tmp_path)
    assert ran.returncode == 1
    for name in ("dataset.train", "evaluate_reward_model.suites"):
        (line,) = (line for line in ran.stdout.splitlines() if line.strip().startswith(name))
        assert line.endswith("does not exist. `rlhf demo-data --folder outputs/demo/data` writes it."), ran.stdout


@pytest.mark.waits
def test_check_asks_the_servers_that_a_run_would_use(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:2")
    own = ["--set", "tracking.prefect_api_url=http://127.0.0.1:3/api"]
    ran = rlhf("check", "-c", "configs/runs/demo.yaml", *own, cwd=project)
    assert ran.returncode == 1, ran.stderr
    assert "127.0.0.1:3" in ran.stdout and "127.0.0.1:1" not in ran.stdout
    assert "127.0.0.1:2" in ran.stdout
