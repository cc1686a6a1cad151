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
from rewardflow.errors import JournalWriteFailed

if TYPE_CHECKING:
    from rich.console import Console

Place = tuple[int, str, int]


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


async def score_all(agent: rf.RewardAgent, rollouts: Sequence[rf.Rollout], console: Console) -> Scoring:
    """Returns every rollout's verdict. An agent that stops early raises nothing here: its verdicts still count."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with agent:
            scoring = Scoring(agent.statistics())
            scoring.spent_before_usd = scoring.statistics.ledger.spent_usd
            async with AgentView(agent, len(rollouts), console).shown():
                try:
                    async for group in agent.submit(rollouts):
                        scoring.take([group])
                except rf.AgentHalted as halted:
                    scoring.take(halted.groups)
                    scoring.halted = halted
                    if isinstance(halted, JournalWriteFailed):
                        scoring.journal_problem = str(halted)
            scoring.elapsed_s = loop.time() - began_s
            scoring.statistics = agent.statistics()
    except JournalWriteFailed as error:  # the agent delivered the verdicts, so the output has them
        scoring.journal_problem = scoring.journal_problem or str(error)
    return scoring
