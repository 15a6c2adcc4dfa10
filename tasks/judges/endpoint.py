"""A language model behind an OpenAI-compatible address: one question, with a limit of time and a few tries."""

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from containers.contracts.configs.parts.judges import EndpointJudge
from tasks.sources.secrets import stored_secret

_TRIES = 4
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_TOO_MANY = 429
_FORBIDDEN = (401, 403)
_SERVERS_FAULT = 500
_MOST_BYTES = 2_000_000


class EndpointError(Exception):
    """The judge gave no answer that could be used; the text says why, without the key."""


class EndpointDownError(EndpointError):
    """The judge cannot be asked at all: the address does not answer, or refuses the key."""


def judge_key(judge: EndpointJudge) -> str | None:
    """The key of the judge, from the environment or, if it is not there, from the Secret block of that name.

    Raises:
        EndpointDownError: a key is named, and neither has it.
    """
    if judge.key is None:
        return None
    found = os.environ.get(judge.key) or stored_secret(judge.key.lower().replace("_", "-"))
    if not found:
        raise EndpointDownError(
            f"judge {judge.name} needs the key {judge.key}: neither a variable of that name nor the Secret block "
            f"{judge.key.lower().replace('_', '-')} of Prefect has it"
        )
    return found


@dataclass(frozen=True)
class Endpoint:
    """Asks one judge.

    Attributes:
        key: sent with each question, and kept nowhere; None: none is needed.
    """

    judge: EndpointJudge
    key: str | None = field(repr=False)

    def answer(self, question: str) -> str:
        """Return what the model writes, greedily.

        Raises:
            EndpointDownError: the address does not answer after a few tries, or refuses the key.
            EndpointError: it answered something that is no completion.
        """
        body = {
            "model": self.judge.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": self.judge.max_tokens,
        }
        found = self._posted("/chat/completions", body)
        try:
            text = found["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise EndpointError("its reply has no message") from error
        if not isinstance(text, str):
            raise EndpointError("its reply has no text")
        return text

    def models(self) -> list[str]:
        """Return the models that the address offers.

        Raises:
            EndpointDownError: it does not answer, or refuses the key.
            EndpointError: its reply is no list of models.
        """
        found = self._request("/models", None, tries=1)
        try:
            return [str(model["id"]) for model in found["data"]]
        except (KeyError, TypeError) as error:
            raise EndpointError("its reply names no models") from error

    def _posted(self, path: str, body: dict[str, Any]) -> Any:
        return self._request(path, json.dumps(body).encode(), tries=_TRIES)

    def _request(self, path: str, data: bytes | None, *, tries: int) -> Any:
        wait_s, problem = _FIRST_WAIT_S, ""
        for left in reversed(range(tries)):
            try:
                return self._once(path, data)
            except urllib.error.HTTPError as error:
                problem = f"it answered with status {error.code}"
                if error.code in _FORBIDDEN:
                    raise EndpointDownError(f"it refuses the key (status {error.code})") from error
                if error.code != _TOO_MANY and error.code < _SERVERS_FAULT:
                    raise EndpointError(problem) from error
            except TimeoutError:
                problem = f"it did not answer within {self.judge.timeout_s:g} s"
            except ValueError:
                problem = "its reply is no JSON"
            except OSError as error:
                reason = getattr(error, "reason", error)
                problem = f"it does not answer ({type(reason).__name__})"
            if left:
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise EndpointDownError(f"{problem}, {tries} times" if tries > 1 else problem)

    def _once(self, path: str, data: bytes | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(f"{self.judge.url.rstrip('/')}{path}", data=data, headers=headers)  # noqa: S310
        with _OPENER.open(request, timeout=self.judge.timeout_s) as reply:
            return json.loads(reply.read(_MOST_BYTES))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A reply that leads elsewhere would take the key there."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
