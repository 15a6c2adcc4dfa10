"""A Docker daemon of the test's own, which may be stopped and started without anybody else losing a container."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import docker
import requests

_START_LIMIT_S = 60
_STOP_LIMIT_S = 60


class NoPrivateDaemonError(Exception):
    """A second daemon cannot be run here; the message says why."""


@dataclass
class PrivateDaemon:
    """dockerd with folders, socket and containerd of its own; ended by its process id alone.

    It gets a network namespace of its own too: a daemon without a bridge removes `docker0`, whose-ever it is.
    """

    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        """For DOCKER_HOST."""
        return f"unix://{self.folder}/docker.sock"

    def start(self, *, live_restore: bool) -> None:
        """Start it and wait until it answers.

        Raises:
            NoPrivateDaemonError: it cannot be started here.
        """
        if os.geteuid() != 0 or not all(shutil.which(program) for program in ("dockerd", "unshare")):
            raise NoPrivateDaemonError("a Docker daemon of the test's own needs root, dockerd and unshare")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "daemon.json").write_text(json.dumps({"live-restore": live_restore}))
        options = {
            "config-file": self.folder / "daemon.json",
            "data-root": self.folder / "data",
            "exec-root": self.folder / "exec",
            "pidfile": self.folder / "docker.pid",
            "host": self.url,
            "bridge": "none",
            "iptables": "false",
            "ip6tables": "false",
        }
        command = ["unshare", "--net", "dockerd", *(f"--{name}={value}" for name, value in options.items())]
        with (self.folder / "dockerd.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise NoPrivateDaemonError(f"it did not come up: {self.last_words()}")
            time.sleep(0.2)

    def stop(self) -> None:
        """SIGTERM, as `systemctl stop docker` sends it; returns when it is gone."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=_STOP_LIMIT_S)
            self.process = None

    def restart(self, *, live_restore: bool) -> None:
        """As `systemctl restart docker`."""
        self.stop()
        self.start(live_restore=live_restore)

    def load(self, image: str) -> None:
        """Copy an image from the daemon of this machine."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            subprocess.run(["docker", "-H", self.url, "load"], stdin=saved.stdout, check=True, capture_output=True)

    def remove(self) -> None:
        """Stop it, and remove what it kept."""
        with contextlib.suppress(docker.errors.DockerException, requests.RequestException), self.client() as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
        self.stop()
        # dockerd mounts its folder onto itself, and leaves that when it ends.
        subprocess.run(["umount", self.folder / "data"], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def client(self):  # type: ignore[no-untyped-def]
        """A client of this daemon."""
        client = docker.DockerClient(base_url=self.url)
        try:
            yield client
        finally:
            client.close()

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join((self.folder / "dockerd.log").read_text(errors="replace").splitlines()[-5:])

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (docker.errors.DockerException, requests.RequestException, OSError):
            return False
