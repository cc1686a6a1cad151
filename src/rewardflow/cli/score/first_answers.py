"""Asks about one group of answers before all others, so that a wrong key or a missing server ends a command at once.

Always true: a verdict that is reached here counts like any other and is asked for once. Only a service that refuses the
caller (401, 403), that nobody can connect to, or that gave a function of the user's own no answer at all ends the
command; one that is slow, busy, flaky or unclear does not, because the agent can handle that. A function that
scored something in an earlier session has had answers: calls that fail now are about answers that it cannot score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import rewardflow as rf
from rewardflow.errors import RewardLoadError
from rewardflow.reward.calls.call_records import DispatchStatistics
from rewardflow.services.http.connecting import unreachable

PATIENCE_S = 4.0
# One group may fail by itself, and a flaky service fails five times in a row too rarely to matter.
_SURE_GROUPS = 2
_SURE_CALLS = 5


@dataclass(slots=True)
class _FirstVerdicts:
    """What the first verdicts tell about the service."""

    is_known: bool = False  # from the journal: an earlier session had a score
    last_error: str | None = None

    def look_at(self, groups: Iterable[rf.ScoredGroup]) -> None:
        for reward in (reward for group in groups for reward in group.rewards):
            self.is_known = self.is_known or (reward.cached and reward.is_scored)
            self.last_error = reward.error or self.last_error


async def ask_first(
    agent: rf.RewardAgent, rollouts: Sequence[rf.Rollout], take: Callable[[Iterable[rf.ScoredGroup]], None]
) -> tuple[list[rf.Rollout], list[rf.Ticket]]:
    """Returns the rollouts that are left to submit, and the tickets of groups that have no verdict yet.

    A verdict from a journal or of a cascade's rule says nothing about the service, and one group that fails may be at
    fault itself: the number of groups doubles until every service was asked and is known to be there.
    """
    groups: dict[tuple[int, str], list[rf.Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault((rollout.step, rollout.group_id), []).append(rollout)
    waiting, num_groups, num_asked = list(groups.values()), 1, 0
    slow: list[rf.Ticket] = []
    verdicts = _FirstVerdicts()
    while waiting:
        chosen, waiting = waiting[:num_groups], waiting[num_groups:]
        num_groups *= 2
        calls_before = agent.statistics().calls
        ticket = agent.submit([rollout for group in chosen for rollout in group])
        try:
            async with asyncio.timeout(PATIENCE_S):
                judged = await ticket.all()
                take(judged)
                verdicts.look_at(judged)
        except TimeoutError:
            slow.append(ticket)
        accounts = agent.statistics().accounts
        num_asked += len(chosen) if agent.statistics().calls > calls_before else 0
        _require_accepted(accounts)
        silent = [account for account in accounts if account.calls and _has_no_answer(account)]
        await _require_connection(silent)
        doubtful = [account for account in silent if "service" in account.outcomes and not _is_called_by_url(account)]
        if num_asked >= _SURE_GROUPS and not verdicts.is_known:
            _require_some_answer(doubtful, verdicts.last_error)
        if not doubtful and all(account.calls for account in accounts):
            break
    return [rollout for group in waiting for rollout in group], slow


def _has_no_answer(account: DispatchStatistics) -> bool:
    """Whether nothing shows that the service is there: no call has ended yet, or each ended with an error of it."""
    return not set(account.outcomes) - {"service", "cancelled"}


def _is_called_by_url(account: DispatchStatistics) -> bool:
    """Whether the agent knows the addresses, so that a connection can be tried; a user's function has its own."""
    return all((one.name or "").startswith(("http://", "https://")) for one in account.governors.endpoints)


async def _require_connection(accounts: Sequence[DispatchStatistics]) -> None:
    problem = await unreachable(accounts)
    if problem is not None:
        raise RewardLoadError(f"the reward's service must be reachable, got no connection to {problem}")


def _require_some_answer(accounts: Sequence[DispatchStatistics], last_error: str | None) -> None:
    for account in accounts:
        num_failed = account.outcomes["service"]
        if num_failed >= _SURE_CALLS:
            reason = next((one.breaker.last_failure for one in account.governors.endpoints), None) or last_error
            raise RewardLoadError(
                f"the reward's service must be reachable, all of the first {num_failed} calls of {account.account} "
                f"failed: {reason}"
            )


def _require_accepted(accounts: Sequence[DispatchStatistics]) -> None:
    for account in accounts:
        if account.refusal is not None:
            raise RewardLoadError(f"the reward's service must accept its caller, got {account.refusal}")
