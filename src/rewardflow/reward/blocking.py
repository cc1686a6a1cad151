"""The agent for code that is not async: scripts, notebooks, and trainers that want a plain function.

Always true: the agent runs on an event loop in a separate thread, so it also works where the caller already has a
running loop; an interrupt (Ctrl-C) reaches the caller only after the agent has closed properly.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rewardflow.errors import AgentClosed, IncompleteGroup, InvalidInput, JournalWriteFailed
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.component import Weighted
from rewardflow.reward.option_help import with_options_in_help
from rewardflow.reward.progress import Screen, screen_here, shown_progress
from rewardflow.types import EMPTY, RewardList, Rollout, ScoredGroup

if TYPE_CHECKING:
    from typing import Unpack

    from rewardflow.reward.settings import AgentOptions

T = TypeVar("T")

logger = logging.getLogger(__name__)

_SIGNAL_CHECK_S = 1.0


@with_options_in_help
def score(
    rollouts: Rollout | Iterable[Rollout],
    reward: RewardLike | Weighted | Sequence[Weighted],
    *,
    reward_kwargs: Mapping[str, Any] = EMPTY,
    progress: bool | None = None,
    **options: Unpack[AgentOptions],
) -> RewardList:
    """Scores rollouts and returns one reward for each, in their order. Works in scripts and in notebooks.

    rollouts: one `Rollout` or several; a group must have all of its rollouts.
    reward: a function, "file.py:name", "package.module:name", a reward file such as "judge.yaml", or `Weighted` ones.
    reward_kwargs: settings of a reward that is a class or is given by name.
    progress: True shows progress on stderr, False does not; None: on a terminal and in a notebook, not in files and CI.

    If the agent has to stop (an outage, the budget, a full disk), the exception's `groups` holds all verdicts reached
    so far. docs/settings.md explains when to change an option.
    """
    batch = [rollouts] if isinstance(rollouts, Rollout) else list(rollouts)
    check_whole_groups(batch)
    agent = RewardAgent(reward, reward_kwargs=reward_kwargs, **options)
    screen = screen_here(is_wanted=progress)
    with LoopThread() as thread:
        groups = thread.run(_score(agent, batch, screen))
    by_place = {
        (rollout.step, rollout.group_id, rollout.index): verdict
        for group in groups
        for rollout, verdict in zip(group.rollouts, group.rewards, strict=True)
    }
    return RewardList(by_place[rollout.step, rollout.group_id, rollout.index] for rollout in batch)


async def _score(agent: RewardAgent, batch: Sequence[Rollout], screen: Screen | None) -> list[ScoredGroup]:
    groups: list[ScoredGroup] = []
    try:
        async with agent, shown_progress(agent, total=len(batch), screen=screen):
            groups = await agent.submit(batch).all()
    except JournalWriteFailed as failed:
        if not groups:
            raise
        raise JournalWriteFailed(str(failed), groups) from failed  # it came at the end, after the last verdict
    return groups


def check_whole_groups(rollouts: Sequence[Rollout]) -> None:
    """Raises `IncompleteGroup` if a group lacks a rollout: no more will come, so it would never be complete."""
    seen: dict[tuple[int, str], tuple[int, set[int]]] = {}
    for rollout in rollouts:
        if not isinstance(rollout, Rollout):
            raise InvalidInput(f"score takes rewardflow.Rollout records, got {type(rollout).__name__}")
        seen.setdefault((rollout.step, rollout.group_id), (rollout.group_size, set()))[1].add(rollout.index)
    for (step, group_id), (size, indices) in seen.items():
        missing = list(itertools.islice((index for index in range(size) if index not in indices), 10))
        if missing:
            raise IncompleteGroup(
                f"every group must have all of its rollouts, but group {group_id!r} of step {step} "
                f"(group_size={size}) lacks index {', '.join(map(str, missing))}"
            )


class LoopThread:
    """Runs an event loop in a separate thread for as long as the block lasts.

    Code on the loop cannot end it: the thread starts a loop again that was stopped, or left by an exception.
    """

    def __init__(self) -> None:
        self._is_stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rewardflow-loop", daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the thread and waits for it; on an interrupt, cancels it and waits until it has ended."""
        future = self.start(coroutine)
        try:
            while not future.done():  # Python handles a signal that comes just before the wait only after the wait
                concurrent.futures.wait([future], timeout=_SIGNAL_CHECK_S)
            return future.result()
        except concurrent.futures.CancelledError as error:  # nobody outside the loop could cancel it
            raise AgentClosed(
                "the agent was closed because code on its event loop cancelled tasks that it did not start"
            ) from error
        except BaseException:
            if not future.done():
                future.cancel()
                self._wait_until_idle()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, action: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(action)

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        if self._thread.is_alive():
            self._is_stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            if not self.is_current():
                self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._is_stopping:
                self._run_loop()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _run_loop(self) -> None:
        """Runs the loop until it is stopped; logs if reward code ended it."""
        try:
            self._loop.run_forever()
            problem = "it was stopped"
        except (KeyboardInterrupt, SystemExit) as error:  # a task of reward code raised it; no signal arrives here
            problem = f"a task raised {type(error).__name__}"
        if not self._is_stopping:
            logger.error("reward code must not end the agent's event loop, but %s; the loop goes on", problem)

    def _wait_until_idle(self) -> None:
        async def others_to_end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others)

        asyncio.run_coroutine_threadsafe(others_to_end(), self._loop).result()
