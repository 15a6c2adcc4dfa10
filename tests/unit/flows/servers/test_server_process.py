"""Stopping servers: nobody is waited for in vain, and nobody who still saves something is cut short."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from flows.servers.process import stop_groups

WATCHER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
child.wait()
time.sleep(60)
"""
SAVER = """
import signal, sys, time
def save(*_):
    time.sleep(1)
    open("saved", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
time.sleep(60)
"""


def start(folder: Path, program: str, *words: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", program, *words], cwd=folder, start_new_session=True)
    deadline = time.monotonic() + 30
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return child


def test_who_only_watches_a_server_is_not_waited_for_once_that_has_ended(tmp_path: Path) -> None:
    leader = start(tmp_path, WATCHER, SAVER)
    (server,) = psutil.Process(leader.pid).children()
    began = time.monotonic()
    stop_groups([leader.pid], children={leader.pid: leader}, watchers=[leader.pid])
    assert time.monotonic() - began < 8
    assert (tmp_path / "saved").exists(), "the server itself had its time"
    assert not server.is_running()
    assert leader.returncode is not None


def test_a_server_that_is_alone_in_its_group_has_its_time(tmp_path: Path) -> None:
    server = start(tmp_path, SAVER)
    stop_groups([server.pid], children={server.pid: server})
    assert (tmp_path / "saved").exists()
    assert server.returncode == 0
