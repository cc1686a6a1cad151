"""The statistics of an agent at one moment, as `RewardAgent.statistics()` returns them.

Always true: the record holds numbers and names only, so it can be printed, pickled and sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rewardflow.observe.line_file import LineFileStatistics
from rewardflow.reward.calls.call_records import DispatchStatistics
from rewardflow.reward.code.thread_pool import WorkerStatistics
from rewardflow.reward.groups.assembly import AssemblyStatistics
from rewardflow.reward.groups.local_decision import LocalDeciderStatistics
from rewardflow.reward.journal.verdict_journal import JournalStatistics
from rewardflow.reward.limits.ledger import LedgerStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatistics:
    """The statistics of all parts of an agent at one moment."""

    verdicts: AssemblyStatistics
    ledger: LedgerStatistics
    accounts: tuple[DispatchStatistics, ...]
    deciders: Mapping[str, LocalDeciderStatistics]
    workers: Mapping[str, WorkerStatistics]
    journal: JournalStatistics | None
    events: LineFileStatistics | None

    @property
    def in_flight(self) -> int:
        return sum(account.in_flight for account in self.accounts)

    @property
    def waiting(self) -> int:
        undecided = sum(decider.waiting + decider.running for decider in self.deciders.values())
        return undecided + sum(account.waiting for account in self.accounts)

    @property
    def calls(self) -> int:
        return sum(account.calls for account in self.accounts)

    @property
    def retries(self) -> int:
        """Calls that repeated one that had failed; hedges do not count."""
        return sum(account.retries for account in self.accounts)
