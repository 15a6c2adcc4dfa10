"""What another process of the same user reads in /proc: no secret of the orchestrator, which itself keeps them."""

import os
import subprocess
import sys

import pytest

from containers.host.environment_block import is_secret, without_secrets

CANARY = "canary-41d7a9"
SECRETS = {
    "HF_TOKEN": CANARY,
    "MLFLOW_TRACKING_PASSWORD": CANARY,
    "PREFECT_API_AUTH_STRING": f"ada:{CANARY}",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql://ada:{CANARY}@db/prefect",
}
# The orchestrator, in a process of its own: what a child of its reads of it, what it has left itself.
PROGRAM = """
import os, subprocess, sys
from containers.host.environment_block import hide_secrets
read = [sys.executable, "-c", "import os; print(open(f'/proc/{os.getppid()}/environ').read())"]
clean = {"PATH": os.environ["PATH"]}
before = subprocess.run(read, env=clean, capture_output=True, text=True).stdout
hide_secrets()
after = subprocess.run(read, env=clean, capture_output=True, text=True).stdout
own = [name for name in sys.argv[1:] if "canary" in os.environ[name]]
child = subprocess.run(["env"], capture_output=True, text=True).stdout
print(before.count("canary"), after.count("canary"), "PLAIN=seen" in after, len(own), child.count("canary"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")
def test_secrets_leave_the_block_that_others_read_and_stay_with_the_process_and_its_children() -> None:
    environment = os.environ | SECRETS | {"PLAIN": "seen"}
    words = [sys.executable, "-c", PROGRAM, *SECRETS]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    count = str(len(SECRETS))
    assert ended.stdout.split() == [count, "0", "True", count, count]


def test_the_command_line_hides_them_before_it_does_anything() -> None:
    program = (
        "import flows.cli.main as cli\n"
        "cli._run_command = lambda parsed: print(open('/proc/self/environ').read().count('canary')) or 0\n"
        "cli.main(['plan', '-c', 'x.yaml'])"
    )
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, env=os.environ | SECRETS, capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n"


@pytest.mark.parametrize(
    "name",
    [
        "DB_PASS",
        "SMTP_PASS",
        "MYSQL_PWD",
        "OPENAI_KEY",
        "AZURE_STORAGE_CONNECTION_STRING",
        "SLACK_WEBHOOK_URL",
        "PASSPHRASE",
        "SIGNING_PASSPHRASE",
        "db_pass",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_API_KEY_2",
    ],
)
def test_secrets_are_known_by_their_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_secret(name, CANARY)
    monkeypatch.setenv(name, CANARY)
    assert without_secrets(f"refused: {CANARY}.") == "refused: ***."


@pytest.mark.parametrize("value", ["/home/ada/project", "http://127.0.0.1:4200/api"])
@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "PATH",
        "PREFECT_API_URL",
        "MLFLOW_TRACKING_USERNAME",
        "PWD",
        "OLDPWD",
        "SSH_ASKPASS",
        "PGPASSFILE",
        "SSH_PUBLIC_KEY",
        "KEYBOARD",
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_a_message_shows_no_secret_of_the_process_and_nothing_that_looks_like_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", f"ada:{CANARY}")
    text = f"line 1: `hf_{'a1' * 17}`, `ada:{CANARY}`, root:$6$abc$defghijkl.mnop:19000, but sk-learn and hf_home"
    assert without_secrets(text) == "line 1: `***`, `***`, root:***:19000, but sk-learn and hf_home"


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql://rlhf:sup3rsecret@h/db", "sup3rsecret"),
        ("postgresql://rlhf:sup%403r%2Fsecret@h/db", "sup%403r%2Fsecret"),
        ("postgresql://rlhf:sup%403r%2Fsecret@h/db", "sup@3r/secret"),
        ("postgresql://rlhf@h/db?sslmode=require&password=sup3r%21secret", "sup3r!secret"),
    ],
)
def test_the_password_inside_an_address_is_masked_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, url: str, password: str
) -> None:
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", url)
    shown = without_secrets(f"login failed for rlhf:{password}, password {password}, at {url}")
    assert shown == "login failed for rlhf:***, password ***, at ***"


def test_a_trivially_short_password_blanks_no_words_but_stays_out_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_URL", "postgresql://rlhf:a@h/db")
    text = "a stage at postgresql+asyncpg://rlhf:a@h/db failed, and http://h:4200/api at once"
    assert without_secrets(text) == "a stage at postgresql+asyncpg://***@h/db failed, and http://h:4200/api at once"


def test_a_password_that_is_the_users_own_name_blanks_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_URL", "postgresql://prefect:prefect@h/db")
    assert without_secrets("prefect cannot open postgresql://prefect:prefect@h/db") == "prefect cannot open ***"
