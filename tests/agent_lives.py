"""Lives of an agent that go wrong, for tests that nothing is lost in them: calls that misbehave, blocks that are left.

A behaviour and a way of leaving are words, so that plans of them are drawn and shown as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import rewardflow as rf

TOO_LONG_S = 1e6  # nothing here may wait that long: whoever still does hangs
CLOSE_TIMEOUT_S = 10.0
GRACE_S = 5.0

LEAVING = ("the end of the block", "an error", "being cancelled")
TAKING = ("one by one", "three at a time", "all")


# -- calls ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fate:
    """What the service does to the call for one rollout; a call for a whole group has the fate of its first."""

    behaviour: str = "score"
    delay_s: float = 0.0
    cost_usd: float = 0.0


async def misbehave(behaviour: str, *, is_first: bool = True) -> None:
    """What a bad call does instead of returning. `is_first` is for those that do it once."""
    if behaviour == "hang":
        await asyncio.sleep(2 * TOO_LONG_S)
    if behaviour == "swallow cancellation":
        while asyncio.get_running_loop().time() < TOO_LONG_S:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
    if behaviour == "answer when cancelled":
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
    if behaviour == "raise CancelledError":
        raise asyncio.CancelledError
    if behaviour == "raise":
        raise ValueError("a bug")
    if behaviour == "429" or (behaviour == "429 once" and is_first):
        raise rf.RateLimited(retry_after_s=1.0)
    if behaviour == "503" or (behaviour == "503 once" and is_first):
        raise rf.ServiceError("down", status=503)


def numbered_rollouts(groups: Iterable[tuple[int, int]]) -> list[rf.Rollout]:
    """Of groups given by size and step. Each response is its number."""
    rollouts: list[rf.Rollout] = []
    for number, (size, step) in enumerate(groups):
        rollouts += [
            rf.Rollout(group_id=f"g{number}", index=i, group_size=size, response=str(len(rollouts) + i), step=step)
            for i in range(size)
        ]
    return rollouts


# -- the block -----------------------------------------------------------------------------------------------------


class Leaving(Exception):
    """How the block of an agent ends when the training code has a bug."""


async def leave(how: str) -> None:
    if how == "an error":
        raise Leaving
    task = asyncio.current_task()
    if how == "being cancelled" and task is not None:
        task.cancel()
        await asyncio.sleep(0)


@contextlib.contextmanager
def left_as_planned() -> Iterator[None]:
    """Round a block that is left by `leave`; what nobody planned goes on."""
    try:
        yield
    except Leaving:
        pass
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 1, "nobody cancelled this"
        task.uncancel()


def cancel_if_open(agent: rf.RewardAgent, ticket: rf.Ticket, group_ids: Sequence[str] | None = None) -> None:
    if agent.is_open:
        ticket.cancel(group_ids)


async def take_all(ticket: rf.Ticket, taken: list[rf.ScoredGroup], how: str = "iterating") -> rf.AgentHalted | None:
    """Everything the ticket will ever give, whichever way it comes out, and why the agent halted if it did.

    A ticket that hangs fails the test.
    """
    try:
        async with asyncio.timeout(TOO_LONG_S) as limit:
            if how == "all":
                taken += await ticket.all()
            if how == "iterating":
                async for group in ticket:
                    taken.append(group)
            while groups := await ticket.take(3 if how == "three at a time" else 1):
                taken += groups
    except rf.AgentHalted as halted:
        taken += halted.groups
        return halted
    except TimeoutError:
        raise AssertionError("a ticket hangs") from None
    assert not limit.expired()
    return None


def check_that_it_holds_nothing(statistics: rf.AgentStatistics) -> None:
    """An agent that was left has no call, no group and no money in its hands."""
    assert statistics.in_flight == 0
    assert statistics.verdicts.pending_groups == 0
    assert statistics.ledger.reserved_usd == 0
    for account in statistics.accounts:
        assert all(endpoint.in_flight == 0 for endpoint in account.governors.endpoints)
