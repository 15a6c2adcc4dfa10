"""Remove secrets from /proc/<pid>/environ, the kernel's view of this process's environment.

It shows the memory with the variables that the process got at its start, to every process of the same user: a stage's
data reader, for example. `os.environ.pop` does not change that memory.
"""

import ctypes
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

logger = logging.getLogger(__name__)

# Excludes PWD and OLDPWD (folders), SSH_ASKPASS (a program), PGPASSFILE (a path), and public keys.
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|PASSW|PASSPHRASE|(?<!ASK)PASS(?=_|$)|_PWD(?=_|$)|SECRET|AUTH_STRING|CREDENTIAL|CONNECTION_STRING"
    r"|WEBHOOK|API_KEY|ACCESS_KEY|PRIVATE_KEY|ENCRYPTION_KEY|(?<!PUBLIC)_KEY$"
)
_LOGIN_IN_ADDRESS = re.compile(r"//[^/@\s]*@")
_USER_AND_PASSWORD = re.compile(r"//([^/:@\s]*):([^/@\s]+)@")
_PASSWORD_OPTION = re.compile(r"[?&](?:ssl)?password=([^&#\s]+)", re.IGNORECASE)
_TOKEN = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|pnu_|AKIA|eyJ)[A-Za-z0-9_.\-]{12,}"
    r"|\$(?:1|2[aby]|5|6|y|7)\$[^\s:]{8,}"
)
_SHORTEST_SECRET = 6
# Fields 50 and 51 of proc(5), counted after the name in brackets, which may hold blanks.
_ENV_START, _ENV_END = 47, 48


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a token, a password, or an address with a login."""
    return bool(value) and bool(
        _SECRET_NAME.search(name.upper()) or _LOGIN_IN_ADDRESS.search(value) or _PASSWORD_OPTION.search(value)
    )


def secret_values() -> tuple[str, ...]:
    """The secrets in this process's environment, and the passwords in its addresses.

    The longest come first, so that replacing one leaves no part of another.
    """
    found = {value for name, value in os.environ.items() if is_secret(name, value)}
    found |= {password for value in found for password in _passwords_in(value)}
    return tuple(sorted(found, key=len, reverse=True))


def _passwords_in(address: str) -> Iterator[str]:
    """Yield the passwords of an address, as written and decoded.

    A password equal to the user's name (`prefect:prefect@`) is left out: it hides nothing, and many messages have it.
    """
    held = [password for user, password in _USER_AND_PASSWORD.findall(address) if password != user]
    for password in (*held, *_PASSWORD_OPTION.findall(address)):
        yield from (password, unquote(password))


def without_secrets(text: str) -> str:
    """The text with `***` for secrets of this process, logins in addresses, and texts that look like tokens.

    Secrets of fewer than six characters stay, since ordinary words contain them; in an address they are replaced.
    """
    for secret in secret_values():
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return _TOKEN.sub("***", _USER_AND_PASSWORD.sub("//***@", text))


def hide_secrets() -> None:
    """Overwrite the secrets in the process's start memory; its own variables stay the same.

    Only Linux shows that memory.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        _blank_secrets()
    except (OSError, ValueError, IndexError) as error:
        logger.debug("The secrets stay visible in /proc/%d/environ: %s", os.getpid(), error)


def _blank_secrets() -> None:
    for name, value in list(os.environ.items()):
        if is_secret(name, value):
            os.environ[name] = value  # a copy for the C library, which pointed into the memory to overwrite
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < start < end:
        return
    offset = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        key, _, held = entry.partition(b"=")
        if is_secret(os.fsdecode(key), os.fsdecode(held)):
            # Not with zeros: a reader (psutil) takes two of them for the end of the block.
            ctypes.memset(offset + len(key) + 1, ord("*"), len(held))
        offset += len(entry) + 1
