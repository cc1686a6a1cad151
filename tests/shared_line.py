"""A line to a host in this process that can be killed, for tests of the shared agent on the virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rewardflow.reward.agent import RewardAgent
from rewardflow.shared_agent.client import LineBroken, SharedAgent
from rewardflow.shared_agent.host import Host
from rewardflow.shared_agent.messages import Delivery, HostStatistics, Op, Welcome


class Lives:
    """Hosts one after another, and the line to the one that is alive. Use as a block on a running loop."""

    def __init__(self, make_agent: Callable[[], RewardAgent], *, delay_s: float = 0.001) -> None:
        self._make_agent = make_agent
        self._delay_s = delay_s
        self.host: Host | None = None
        self._stack = contextlib.AsyncExitStack()
        self._death = asyncio.Event()
        self.deaf: set[str] = set()  # clients that hear nothing until the host dies
        self.num_posts = 0
        self.num_takes = 0

    async def __aenter__(self) -> Lives:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        agent = await self._stack.enter_async_context(self._make_agent())
        self.host = Host(agent, incarnation=uuid.uuid4().hex)
        self._death = asyncio.Event()
        self.deaf.clear()

    async def kill(self) -> None:
        """Nobody hears a word of what happens from here on."""
        self.host = None
        self._death.set()
        await self._stack.aclose()

    @contextlib.asynccontextmanager
    async def client(self, run: str, **options: Any) -> AsyncIterator[SharedAgent]:
        async with SharedAgent(self, run=run, **options) as agent:
            yield agent

    # -- the line ----------------------------------------------------------------------------------------------------

    async def hello(self, client_id: str, run: str, share: float) -> Welcome:
        return await self._answer(lambda host: host.hello(client_id, run, share))

    async def post(self, client_id: str, ops: Sequence[Op]) -> bool:
        self.num_posts += 1
        sent = pickle.dumps(ops)
        return await self._answer(lambda host: host.post(client_id, pickle.loads(sent)))

    async def take(self, client_id: str, confirmed: int) -> Delivery | None:
        self.num_takes += 1
        if client_id in self.deaf:
            await self._death.wait()
            raise LineBroken("it is dead")
        return pickle.loads(pickle.dumps(await self._answer(lambda host: host.take(client_id, confirmed))))

    async def bye(self, client_id: str) -> None:
        await self._answer(lambda host: host.bye(client_id))

    async def statistics(self) -> HostStatistics:
        return await self._answer(lambda host: host.statistics())

    async def _answer(self, ask: Callable[[Host], Any]) -> Any:
        """The way takes time in both directions, and is cut when the host dies."""
        await asyncio.sleep(self._delay_s)
        host, death = self.host, self._death
        if host is None:
            raise LineBroken("it is dead")
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(_outcome(ask, host))
            dying = tasks.create_task(death.wait())
            await asyncio.wait((answer, dying), return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            answer.cancel()
        await asyncio.sleep(self._delay_s)
        if death.is_set() or answer.cancelled():
            raise LineBroken("the answer was lost")
        result, error = answer.result()
        if error is not None:
            raise error
        return result


async def _outcome(ask: Callable[[Host], Any], host: Host) -> tuple[Any, Exception | None]:
    try:
        result = ask(host)
        return (await result if inspect.isawaitable(result) else result), None
    except Exception as error:
        return None, error
