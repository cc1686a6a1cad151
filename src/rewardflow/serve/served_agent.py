"""The client of `rewardflow serve`: a `SharedAgent` whose messages travel as JSON over HTTP.

    async with connect("http://127.0.0.1:8078", run="job-1") as agent:
        groups = await agent.submit(rollouts).all()

Always true: the client has the interface of `RewardAgent`, and keeps its promises when the server restarts: it sends
rollouts without a verdict again, and ignores a verdict that comes a second time. The token is in no log or error.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final

import aiohttp

from rewardflow.errors import InvalidInput, SharedAgentGone
from rewardflow.observe.events import EventSink
from rewardflow.observe.redact import address_to_show, redact, register_secret
from rewardflow.serve.plain_records import from_plain, json_problem, read_json, to_json
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.shared_agent.connection import ConnectionLost
from rewardflow.shared_agent.host_clients import POLL_S
from rewardflow.shared_agent.messages import Delivery, HostStatistics, Op, RunFull, Welcome

TOKEN_ENV: Final = "REWARDFLOW_TOKEN"
_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 60.0  # a server on a busy machine may take long to read a message of megabytes
_MAX_DELIVERY_BYTES: Final = 2**30
_REFUSED: Final = (400, 401, 403, 404, 405, 413)


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
    """Carries a client's messages to a server. It opens its connections on the loop of the first message."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"the server's address must begin with http:// or https://, got {address_to_show(url)}")
        self._url = url.rstrip("/")
        self._headers: Mapping[str, str] = {}
        if token:
            register_secret(token)
            self._headers = {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None

    async def hello(self, secret: str, run: str, share: float, records: bool) -> Welcome:
        body = {"secret": secret, "run": run, "share": share, "records": records}
        return from_plain(Welcome, await self._ask("hello", body), "the server's welcome")

    async def post(self, secret: str, ops: Sequence[Op]) -> bool:
        body = {"secret": secret, "ops": [{"op": type(op).__name__, "about": op} for op in ops]}
        return bool(await self._ask("post", body))

    async def take(self, secret: str, confirmed: int) -> Delivery | None:
        body = {"secret": secret, "confirmed": confirmed}
        return _delivery(await self._ask("take", body, wait_s=POLL_S))

    async def bye(self, secret: str, confirmed: int) -> Delivery | None:
        return _delivery(await self._ask("bye", {"secret": secret, "confirmed": confirmed}))

    async def statistics(self) -> HostStatistics:
        return from_plain(HostStatistics, await self._ask("statistics", None), "the server's statistics")

    def problem_with(self, value: object) -> str | None:
        return json_problem(value)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, verb: str, body: Mapping[str, Any] | None, *, wait_s: float = 0.0) -> Any:
        """Sends one message and returns the parsed answer; None if the server does not know this client."""
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, trust_env=False)
        timeout = aiohttp.ClientTimeout(total=wait_s + _ANSWER_S, sock_connect=_CONNECT_S)
        method, data = ("GET", None) if body is None else ("POST", to_json(body))
        try:
            async with self._session.request(
                method,
                f"{self._url}/v1/{verb}",
                data=data,
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
        return self._read(status, text, is_first=verb == "hello")

    def _read(self, status: int, text: bytes, *, is_first: bool) -> Any:
        if status == 200:
            return read_json(text)
        reason = _reason(text)
        if status == 410:  # it is there and has forgotten the client, which must say hello
            return None
        if status == 429:
            raise RunFull(reason)
        if status in _REFUSED or 300 <= status < 400:
            refused = f"{address_to_show(self._url)} refused the request ({status}): {reason}"
            raise InvalidInput(refused) if is_first else SharedAgentGone(refused)
        raise ConnectionLost(f"status {status}: {reason}")


def _delivery(answer: Any) -> Delivery | None:
    return None if answer is None else from_plain(Delivery, answer, "a delivery of the server")


def _reason(text: bytes) -> str:
    try:
        return redact(str(read_json(text)["error"]["message"]))[:500]
    except (InvalidInput, LookupError, TypeError):
        return redact(text[:200].decode("utf-8", "replace"))
