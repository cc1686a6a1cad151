"""The client of `rewardflow serve`: a `SharedAgent` whose messages travel as JSON over HTTP.

    async with connect("http://127.0.0.1:8078", run="job-1") as agent:
        groups = await agent.submit(rollouts).all()

Always true: the client has the interface of `RewardAgent`, and keeps its promises when the server restarts: it sends
rollouts without a verdict again, and ignores a verdict that comes a second time. The token is in no log or error.
"""

from __future__ import annotations

import io
import os
import urllib.parse
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final, TypeVar, cast

import aiohttp

from rewardflow.errors import InvalidInput, SharedAgentGone
from rewardflow.observe.events import EventSink
from rewardflow.observe.redact import address_to_show, redact, register_address, register_secret
from rewardflow.serve.http_json import from_plain, json_problem, read_json
from rewardflow.serve.own_protocol import message_json, verb_of
from rewardflow.services.http.endpoint import warn_of_readable_key
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.shared_agent.connection import ConnectionLost, MessageRefused
from rewardflow.shared_agent.host_clients import POLL_S
from rewardflow.shared_agent.messages import (
    AskStatistics,
    Bye,
    Delivery,
    Hello,
    HostStatistics,
    Message,
    Post,
    RunFull,
    Take,
    UnknownClient,
    Welcome,
)

T = TypeVar("T")

TOKEN_ENV: Final = "REWARDFLOW_TOKEN"
_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 60.0  # a server on a busy machine may take long to read a message of megabytes
_MAX_DELIVERY_BYTES: Final = 2**30
_REFUSED: Final = (401, 403, 404, 405)
_NOT_TAKEN: Final = (400, 413)  # for what the message holds
_ANSWERS: Final[Mapping[type[Message[Any]], Any]] = {
    Hello: Welcome,
    Post: object,
    Take: Delivery,
    Bye: Delivery,
    AskStatistics: HostStatistics,
}


def connect(
    url: str,
    *,
    run: str,
    token_env: str = TOKEN_ENV,
    share: float = 1.0,
    sends_tokens: bool = False,
    give_up_s: float = 600.0,
    run_dir: str | PathLike[str] | None = None,
    sink: EventSink | None = None,
) -> SharedAgent:
    """Returns a client of the server at this address, for use with `async with`.

    `run` names the training run, which may have many clients; where the server knows jobs by their tokens, it is the
    name of the job. The token is read from the environment variable `token_env`, if it is set. `share` counts against
    those of other runs, unless the server sets the shares. `give_up_s`: how long a server may be away. `run_dir`:
    where this client records the run's events, as a `RewardAgent` does.
    """
    transport = HttpTransport(url, token=os.environ.get(token_env))
    return SharedAgent(
        transport, run=run, share=share, sends_tokens=sends_tokens, give_up_s=give_up_s, run_dir=run_dir, sink=sink
    )


class HttpTransport:
    """The way in over HTTP. It opens its connections on the loop of the first message."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"the server's address must begin with http:// or https://, got {address_to_show(url)}")
        self._url = url.rstrip("/")
        self._headers: Mapping[str, str] = {}
        if token:
            register_secret(token)
            self._headers = {"Authorization": f"Bearer {token}"}
        register_address(url)
        warn_of_readable_key(url, self._headers)
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, message: Message[T]) -> T:
        verb = verb_of(message)
        body = None if isinstance(message, AskStatistics) else message_json(message)
        answer = await self._send(verb, body, wait_s=POLL_S if isinstance(message, Take) else 0.0)
        return cast("T", from_plain(_ANSWERS[type(message)], answer, f"the server's answer to {verb}"))

    def problem_with(self, value: object) -> str | None:
        return json_problem(value)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _send(self, verb: str, body: bytes | None, *, wait_s: float) -> Any:
        """Sends one message and returns the parsed answer."""
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, trust_env=False)
        timeout = aiohttp.ClientTimeout(total=wait_s + _ANSWER_S, sock_connect=_CONNECT_S)
        try:
            async with self._session.request(
                "GET" if body is None else "POST",
                f"{self._url}/v1/{verb}",
                data=None if body is None else io.BytesIO(body),  # is sent in pieces, so that the loop goes on
                headers={"Content-Type": "application/json"},
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                text = await response.content.read(_MAX_DELIVERY_BYTES)
                while chunk := await response.content.read(_MAX_DELIVERY_BYTES):
                    text += chunk
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionLost(redact(f"{type(error).__name__}: {error}")) from error
        return self._read(status, text, verb)

    def _read(self, status: int, text: bytes, verb: str) -> Any:
        if status == 200:
            return read_json(text)
        reason = _reason(text)
        if status == 410:
            raise UnknownClient(reason)
        if status == 429:
            raise RunFull(reason)
        refused = f"{address_to_show(self._url)} refused the request ({status}): {reason}"
        if status in _NOT_TAKEN and verb == "post":
            raise MessageRefused(refused)
        if status in (*_REFUSED, *_NOT_TAKEN) or 300 <= status < 400:
            raise InvalidInput(refused) if verb == "hello" else SharedAgentGone(refused)
        raise ConnectionLost(f"status {status}: {reason}")


def _reason(text: bytes) -> str:
    try:
        return redact(str(read_json(text)["error"]["message"]))[:500]
    except (InvalidInput, LookupError, TypeError):
        return redact(text[:2_000].decode("utf-8", "replace"))[:200]
