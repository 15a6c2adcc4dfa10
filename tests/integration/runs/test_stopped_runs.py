"""Whoever stops a run reads what was stopped and how it goes on; no process stays, nothing finished is made again."""

import os
import signal
from pathlib import Path

import pytest
from short_runs import CONFIG, end, processes_in, read_until, start, wait_for_log

ENDINGS = {signal.SIGINT: ("Interrupted", 130), signal.SIGTERM: ("Stopped by SIGTERM", 143)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_stopped_while_its_servers_start_says_so_and_leaves_no_process(
    folder: Path, number: signal.Signals
) -> None:
    words, code = ENDINGS.get(number, ("Stopped by SIGHUP", 129))
    running = start(folder, "run.name=stopped")
    try:
        read_until(running, "Starting Prefect and MLflow")
        os.killpg(running.pid, number)
        said, _ = running.communicate(timeout=60)
    finally:
        end(running)
    assert running.returncode == code
    assert said.splitlines()[-1] == (
        f"{words}. Nothing that was finished is lost; the same command goes on from the last good step: "
        f"rlhf run -c {CONFIG} --set run.name=stopped"
    )
    assert processes_in(folder) == []


def test_a_user_interface_that_is_stopped_while_it_starts_says_so(folder: Path) -> None:
    running = start(folder, command="ui")
    try:
        read_until(running, "Starting Prefect and MLflow")
        os.killpg(running.pid, signal.SIGTERM)
        said, _ = running.communicate(timeout=60)
    finally:
        end(running)
    assert (running.returncode, said) == (143, "Stopped by SIGTERM.\n")
    assert processes_in(folder) == []


@pytest.mark.slow
@pytest.mark.stages
def test_a_training_that_was_stopped_goes_on_from_its_checkpoint(served: Path) -> None:
    store = served / "outputs" / "stopped-store"
    changes = (
        "run.name=stopped",
        "run.store_dir=outputs/stopped-store",
        "train_sft.schedule.eval_steps=5",
        "train_sft.schedule.save_steps=5",
    )

    def stop_after(sign: str, number: signal.Signals) -> None:
        words, code = ENDINGS[number]
        running = start(served, *changes)
        try:
            wait_for_log(running, store, stage="train_sft", sign=sign)
            os.killpg(running.pid, number)
            said, _ = running.communicate(timeout=60)
        finally:
            end(running)
        assert running.returncode == code
        (line,) = (line for line in said.splitlines() if "goes on from the last good step" in line)
        assert line.startswith(f"{words} during train_sft. Nothing that was finished is lost")
        assert line.endswith(f"rlhf run -c {CONFIG} --set {' --set '.join(changes)}")
        assert "Traceback" not in said
        assert processes_in(store) == []
        assert not (store / "artifacts/train_sft").exists()

    stop_after(r"step \d\d+ of 2000", signal.SIGINT)
    stop_after("Resuming from checkpoint-", signal.SIGTERM)
    assert len(list(store.glob("attempts/filter_dataset/*/*"))) == 1
    assert len(list(store.glob("attempts/train_sft/*/*"))) == 2
