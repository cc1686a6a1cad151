"""Asks about one group of answers before all others, so that a wrong key or a missing server ends a command at once.

Always true: a verdict that is reached here counts like any other and is asked for once. Only a service that refuses the
caller (401, 403) or that nobody can connect to ends the command; one that is slow, busy, flaky or unclear does not,
because the agent can handle that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import rewardflow as rf
from rewardflow.errors import RewardLoadError
from rewardflow.services.http.connecting import unreachable

PATIENCE_S = 4.0
_GO_ON = " (--no-probe starts without asking)"


async def ask_first(
    agent: rf.RewardAgent, rollouts: Sequence[rf.Rollout], take: Callable[[Iterable[rf.ScoredGroup]], None]
) -> tuple[list[rf.Rollout], rf.Ticket | None]:
    """Returns the rollouts that are left to submit, and the ticket of a group that has no verdict yet.

    Verdicts from a journal say nothing about the service, so the number of groups doubles until one was asked about.
    """
    groups: dict[tuple[int, str], list[rf.Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault((rollout.step, rollout.group_id), []).append(rollout)
    waiting, num_groups = list(groups.values()), 1
    while waiting:
        chosen, waiting = waiting[:num_groups], waiting[num_groups:]
        num_groups *= 2
        ticket = agent.submit([rollout for group in chosen for rollout in group])
        try:
            async with asyncio.timeout(PATIENCE_S):
                done = await ticket.all()
        except TimeoutError:
            await _require_connection(agent)
            return _joined(waiting), ticket
        take(done)
        rewards = [reward for group in done for reward in group.rewards if not reward.cached]
        if rewards:
            if all(reward.kind == "service" for reward in rewards):
                await _require_connection(agent)
            _require_accepted(agent)
            break
    return _joined(waiting), None


def _joined(groups: Iterable[Sequence[rf.Rollout]]) -> list[rf.Rollout]:
    return [rollout for group in groups for rollout in group]


async def _require_connection(agent: rf.RewardAgent) -> None:
    problem = await unreachable(agent.statistics().accounts)
    if problem is not None:
        raise RewardLoadError(f"the reward's service must be reachable, got no connection to {problem}{_GO_ON}")


def _require_accepted(agent: rf.RewardAgent) -> None:
    for account in agent.statistics().accounts:
        if account.refusal is not None:
            raise RewardLoadError(f"the reward's service must accept its caller, got {account.refusal}{_GO_ON}")
