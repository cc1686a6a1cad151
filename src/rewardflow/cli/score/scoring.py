"""Runs the calls of commands that judge what exists (`score`, `judge test`, `rejudge`) and shows their progress.

Always true: unless somebody interrupts it, every rollout has a verdict at the end, also if the agent stopped early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import rewardflow as rf
from rewardflow.cli.agent_view import AgentView
from rewardflow.cli.score.first_answers import ask_first
from rewardflow.errors import JournalWriteFailed, RewardLoadError
from rewardflow.types import FailureKind

if TYPE_CHECKING:
    from rich.console import Console

Place = tuple[int, str, int]
_KINDS: dict[type[rf.AgentHalted], FailureKind] = {rf.BudgetExhausted: "budget", rf.ServiceOutage: "outage"}

ALL_SCORED = 0  # the exit codes of these commands
SOME_FAILED = 3


@dataclass(slots=True)
class Scoring:
    """The verdicts and the statistics of the calls."""

    statistics: rf.AgentStatistics
    rewards: dict[Place, rf.Reward] = field(default_factory=dict)
    spent_before_usd: float = 0.0
    elapsed_s: float = 0.0
    halted: rf.AgentHalted | None = None
    journal_problem: str | None = None

    def take(self, groups: Iterable[rf.ScoredGroup]) -> None:
        for group in groups:
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
                self.rewards[rollout.place] = reward

    async def halt(self, halted: rf.AgentHalted, tickets: Iterable[rf.Ticket], rollouts: Iterable[rf.Rollout]) -> None:
        """Takes what all tickets have left, and fails the rollouts that were not submitted before the agent halted."""
        self.halted = halted
        self.take(halted.groups)
        for ticket in tickets:
            try:
                self.take(await ticket.all())
            except rf.AgentHalted as again:
                self.take(again.groups)
        kinds = [kind for error, kind in _KINDS.items() if isinstance(halted, error)]
        unsent = rf.Reward(kind=kinds[0] if kinds else "cancelled", error=str(halted))
        for rollout in rollouts:
            self.rewards.setdefault(rollout.place, unsent)


async def score_all(
    agent: rf.RewardAgent, rollouts: Sequence[rf.Rollout], console: Console, *, probes: bool = True, way_out: str = ""
) -> Scoring:
    """Returns every rollout's verdict. An agent that stops early raises nothing here: its verdicts still count.

    With `probes`, one group is asked about first, and a service that refuses the key or is not there raises; `way_out`
    then says how the command goes on without that.
    """
    loop = asyncio.get_running_loop()
    refused: RewardLoadError | None = None
    began_s = loop.time()
    try:
        async with agent:
            scoring = Scoring(agent.statistics())
            scoring.spent_before_usd = scoring.statistics.ledger.spent_usd
            async with AgentView(agent, len(rollouts), console).shown():
                tickets: list[rf.Ticket] = []
                try:
                    rest, slow = await ask_first(agent, rollouts, scoring.take) if probes else (rollouts, [])
                    tickets += [agent.submit(rest), *slow]
                    for ticket in tickets:
                        async for group in ticket:
                            scoring.take([group])
                except rf.AgentHalted as halted:
                    await scoring.halt(halted, tickets, rollouts)
                    if isinstance(halted, JournalWriteFailed):
                        scoring.journal_problem = str(halted)
                except RewardLoadError as error:  # raised below, because the view would wrap it in a group
                    refused = error
            if refused is not None:
                raise RewardLoadError(f"{refused}{way_out}") from refused
            scoring.elapsed_s = loop.time() - began_s
            scoring.statistics = agent.statistics()
    except JournalWriteFailed as error:  # the agent delivered the verdicts, so the output has them
        scoring.journal_problem = scoring.journal_problem or str(error)
    return scoring
