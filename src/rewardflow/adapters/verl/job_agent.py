"""The one agent of a verl job: how every process of the job names it, starts it and reaches it.

Always true: all processes of a job with the same configuration reach the same agent, so that there is one limiter, one
journal and one ledger, however many reward workers there are; it ends with the job, also where the job is killed and
Ray lives on. One that jobs share by name stays.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

import ray

from rewardflow.adapters.verl.settings import VerlSettings, spec_of
from rewardflow.errors import AgentHalted
from rewardflow.observe.events import EventSink
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.reward.blocking import LoopThread
from rewardflow.shared_agent import ray_actor
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.types import Reward, Rollout


def make_room(settings: VerlSettings) -> None:
    """The run's directory, where the journal is: in verl's own modes the first reward worker makes it."""
    if settings.run_dir is not None:
        RunDirectory.at(settings.run_dir, name=settings.run)


def agent_name(settings: VerlSettings) -> str:
    return settings.agent or f"rewardflow-{ray.get_runtime_context().get_job_id()}"


def tally_name() -> str:
    """Of the actor that counts verdicts in verl's own modes, if the job has one."""
    return f"rewardflow-tally-{ray.get_runtime_context().get_job_id()}"


def client_of_job(settings: VerlSettings, sink: EventSink | None = None) -> SharedAgent:
    """A client of the job's agent, which whoever connects first makes."""
    return ray_actor.connect(
        spec_of(settings),
        name=agent_name(settings),
        run=settings.run,
        sink=sink,
        ends_with_clients=settings.agent is None,
    )


@contextlib.contextmanager
def agent_for_job(settings: VerlSettings) -> Iterator[JobAgent]:
    """The agent, for as long as the job trains. What it wrote is in order when this returns."""
    agent = JobAgent(settings)
    try:
        yield agent
    finally:
        agent.close()
        if settings.agent is None:
            ray_actor.stop(name=agent_name(settings))


class JobAgent:
    """The job's agent as one process sees it.

    It lives on an event loop of its own, held open by one coroutine there: verl makes a reward manager before its
    worker has a loop, and does not tell it when all is over. Then the process's end is the end of it.
    """

    def __init__(self, settings: VerlSettings) -> None:
        make_room(settings)
        self._thread = LoopThread().__enter__()
        self._is_over = asyncio.Event()
        opened: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._held = self._thread.start(_hold_open(client_of_job(settings), opened, self._is_over))
        concurrent.futures.wait((opened, self._held), return_when=concurrent.futures.FIRST_COMPLETED)
        if not opened.done():
            self._held.result()  # raises why
        self._agent = opened.result()

    @property
    def needs_groups(self) -> bool:
        """Whether it judges whole groups: then a verdict comes when all rollouts of its group are there."""
        return bool(self._agent.needs_groups)

    async def score(self, rollout: Rollout) -> Reward:
        reward: Reward = await asyncio.wrap_future(self._thread.start(self._agent.score(rollout)))
        return reward

    def close(self) -> None:
        self._thread.call_soon(self._is_over.set)
        with contextlib.suppress(AgentHalted):  # told by those who asked it
            self._held.result()
        self._thread.stop()


async def _hold_open(agent: SharedAgent, opened: concurrent.futures.Future[Any], is_over: asyncio.Event) -> None:
    async with agent as entered:
        opened.set_result(entered)
        await is_over.wait()
