"""`MockJudge`: starts and stops the server, predicts its scores and returns its counts.

Always true: the judge serves only inside its block, and everything it started has ended when the block has. Under
`with` it runs in its own thread and loop, so that blocking code can call it; under `async with` it runs in the caller's
loop. Every block starts with counts at zero; the counts stay readable after the block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.behaviour import Behaviour, PlannedReply
from rewardflow.mock_judge.marking import share_of
from rewardflow.mock_judge.request_counts import Counts, MockJudgeStatistics
from rewardflow.mock_judge.settings import MockJudgeSettings
from rewardflow.mock_judge.verdict import MockVerdict, draw, score_at, share_at

if TYPE_CHECKING:
    from rewardflow.mock_judge.server import Server


class MockJudge:
    """A judge with these settings; with `settings.port` 0 it listens on any free port."""

    def __init__(self, settings: MockJudgeSettings | None = None) -> None:
        self.settings = settings if settings is not None else MockJudgeSettings()
        self._behaviour = Behaviour(self.settings)
        self._counts = Counts()
        self._port: int | None = None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._stop: Future[None] = Future()

    # -- addresses --

    @property
    def url(self) -> str:
        """The server's root, for `/stats`, `/health` and `/admin/...`."""
        if self._port is None:
            raise InvalidInput("a mock judge has an address only inside its `with` block")
        host = self.settings.host
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.url}/v1"

    # -- predictions --

    def score_of(
        self, prompt: str, criterion: str = "score", low: float = 0.0, high: float = 1.0, *, whole: bool = False
    ) -> float:
        """Returns the score that a prompt (the last user message) gets for a criterion in every call without a fault.

        `low`, `high` and `whole` are the schema's minimum, maximum and "integer". Name a criterion inside another
        object or list with dots: `scores.correctness` or `ranking.0`.
        """
        share = share_of(self.settings, prompt)
        if share is not None:
            return share_at(share, low, high, whole=whole)
        return score_at(draw(self.settings.seed, prompt, criterion), low, high, whole=whole)

    def verdict_of(self, prompt: str, schema: Mapping[str, Any]) -> Any:
        """Returns the whole answer that a prompt gets under a schema in every call without a fault."""
        return MockVerdict(schema, prompt, self.settings.seed, share=share_of(self.settings, prompt)).answer

    def plan_of(self, request: Mapping[str, Any], times_before: int = 0) -> PlannedReply:
        """Returns delay and fault of this request if the judge admitted it `times_before` times before."""
        return self._behaviour.plan(self._behaviour.key_of(request), times_before)

    # -- state and counts --

    @property
    def is_down(self) -> bool:
        return self._counts.is_down

    def go_down(self) -> None:
        """Answers 503 from now on, also to calls in flight."""
        self._counts.is_down = True

    def come_up(self) -> None:
        self._counts.is_down = False

    def end_batches(self) -> None:
        """Makes all batches end now, and later ones at once, whatever `batch_latency` says."""
        if self._server is not None:
            self._server.orders.end_all()

    def statistics(self) -> MockJudgeStatistics:
        return self._counts.statistics()

    def times_admitted(self, request: Mapping[str, Any]) -> int:
        """Returns how often this request passed the limits."""
        return self._counts.times_admitted(self._behaviour.key_of(request))

    # -- lifetime --

    async def __aenter__(self) -> Self:
        self._server = self._fresh_server()
        try:
            self._port = await self._server.start()
        except BaseException:
            self._server = None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        server, self._server, self._port = self._server, None, None
        if server is not None:
            await server.close()

    def __enter__(self) -> Self:
        server = self._server = self._fresh_server()
        self._stop = Future()
        port: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(_serve(server, port, self._stop)), name="mock-judge", daemon=True
        )
        self._thread.start()
        try:
            self._port = port.result()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server = self._port = None
        if not self._stop.done():
            self._stop.set_result(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _fresh_server(self) -> Server:
        if self._server is not None:
            raise InvalidInput("a mock judge can be entered once at a time, got a second `with` inside its block")
        try:
            from rewardflow.mock_judge.server import Server
        except ModuleNotFoundError as error:
            raise InvalidInput(f"a mock judge needs aiohttp: pip install 'aiohttp>=3.14.2' ({error})") from error
        is_down, self._counts = self._counts.is_down, Counts()
        self._counts.is_down = is_down
        return Server(self.settings, self._behaviour, self._counts)


async def _serve(server: Server, port: Future[int], stop: Future[None]) -> None:
    """Runs in the judge's own thread. Passes an error at the start to the caller."""
    try:
        port.set_result(await server.start())
    except BaseException as error:
        port.set_exception(error)
        return
    try:
        await asyncio.wrap_future(stop)
    finally:
        await server.close()
