"""A transport to a host in this process that can be killed, for tests of the shared agent on the virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from rewardflow.reward.agent import RewardAgent
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.shared_agent.connection import ConnectionLost
from rewardflow.shared_agent.host import Host
from rewardflow.shared_agent.host_clients import LEASE_S
from rewardflow.shared_agent.messages import Hello, Message, Post, Take, client_id_of, pickle_problem


class KillableHost:
    """Runs one host after another, and is the transport to the current one. Use as a block on a running loop."""

    def __init__(
        self, make_agent: Callable[[], RewardAgent], *, delay_s: float = 0.001, lease_s: float = LEASE_S
    ) -> None:
        self._make_agent = make_agent
        self._lease_s = lease_s
        self._delay_s = delay_s
        self.current: Host | None = None
        self._stack = contextlib.AsyncExitStack()
        self._death = asyncio.Event()
        self.deaf: set[str] = set()  # clients that get no delivery until the host dies
        self.num_posts = 0
        self.num_takes = 0

    async def __aenter__(self) -> KillableHost:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        agent = await self._stack.enter_async_context(self._make_agent())
        self.current = Host(agent, incarnation=uuid.uuid4().hex, lease_s=self._lease_s)
        self._death = asyncio.Event()
        self.deaf.clear()

    async def kill(self) -> None:
        """Ends the host; no message from it reaches a client after this."""
        self.current = None
        self._death.set()
        await self._stack.aclose()

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Blocks all messages in both directions while the host keeps running."""
        host, self.current = self.current, None
        self._death.set()
        try:
            yield
        finally:
            self.current, self._death = host, asyncio.Event()

    @contextlib.asynccontextmanager
    async def client(self, run: str, **options: Any) -> AsyncIterator[SharedAgent]:
        async with SharedAgent(self, run=run, **options) as agent:
            yield agent

    # -- the transport -----------------------------------------------------------------------------------------------

    async def ask(self, message: Message[Any]) -> Any:
        self.num_posts += isinstance(message, Post)
        if isinstance(message, Take):
            self.num_takes += 1
            if client_id_of(message.secret) in self.deaf:
                await self._death.wait()
                raise ConnectionLost("it is dead")
        sent = pickle.dumps(message)
        return pickle.loads(pickle.dumps(await self._answer(lambda host: host.answer(pickle.loads(sent)))))

    def problem_with(self, value: object) -> str | None:
        return pickle_problem(value)

    async def aclose(self) -> None:
        pass

    async def _answer(self, ask: Callable[[Host], Any]) -> Any:
        """Delays the message in both directions, and loses it when the host dies."""
        await asyncio.sleep(self._delay_s)
        host, death = self.current, self._death
        if host is None:
            raise ConnectionLost("it is dead")
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(_outcome(ask, host))
            dying = tasks.create_task(death.wait())
            await asyncio.wait((answer, dying), return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            answer.cancel()
        await asyncio.sleep(self._delay_s)
        if death.is_set() or answer.cancelled():
            raise ConnectionLost("the answer was lost")
        result, error = answer.result()
        if error is not None:
            raise error
        return result


class UnreliableHost(KillableHost):
    """A transport that may delay a message, lose it or its answer, or deliver it again long after the first time."""

    def __init__(self, make_agent: Callable[[], RewardAgent], *, chance: random.Random, fault_share: float) -> None:
        super().__init__(make_agent, lease_s=1000.0)  # no lease ends while messages get lost
        self._chance = chance
        self._fault_share = fault_share
        self._copies = asyncio.TaskGroup()

    async def __aenter__(self) -> UnreliableHost:
        await self._copies.__aenter__()
        await super().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fault_share = 0.0
        await self._copies.__aexit__(None, None, None)
        await super().__aexit__()

    async def ask(self, message: Message[Any]) -> Any:
        """Never repeats a hello, because a client that has left must not come back."""
        if not isinstance(message, Hello):
            return await super().ask(message)
        if self._chance.random() < self._fault_share:
            raise ConnectionLost("the message was lost")
        return await super()._answer(lambda host: host.answer(message))

    def problem_with(self, value: object) -> str | None:
        return pickle_problem(value)

    async def aclose(self) -> None:
        pass

    async def _answer(self, ask: Callable[[Host], Any]) -> Any:
        draw = self._chance.random() / self._fault_share if self._fault_share else 1.0
        await asyncio.sleep(self._chance.random() * 0.1)
        if draw < 0.25:
            raise ConnectionLost("the message was lost")
        if draw < 0.5:
            self._copies.create_task(self._come_again(ask, self._chance.random() * 3.0))
        answer = await super()._answer(ask)
        if draw < 0.75:
            raise ConnectionLost("the answer was lost")
        return answer

    async def _come_again(self, ask: Callable[[Host], Any], after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.current is not None:
            await _outcome(ask, self.current)


async def _outcome(ask: Callable[[Host], Any], host: Host) -> tuple[Any, Exception | None]:
    try:
        result = ask(host)
        return (await result if inspect.isawaitable(result) else result), None
    except Exception as error:
        return None, error
