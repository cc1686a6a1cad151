"""Shows an agent at work: a live picture on a terminal, a line every few seconds elsewhere.

Always true: everything shown is read from the agent's `statistics()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

from rewardflow.cli.display import PLAIN_EVERY_S, TICK_S, dollars, duration, sparkline
from rewardflow.cli.safe_text import safe
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.agent_statistics import AgentStatistics
from rewardflow.reward.calls.call_records import DispatchStatistics

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

SPARK_SECONDS = 40


def limits_text(account: DispatchStatistics) -> str:
    pace = account.governors.pace
    at_once = f"{account.governors.concurrency.limit} at once"
    if pace.rpm is None:
        return f"{at_once}, no rate limit met so far"
    why = "set" if pace.state == "set" else f"learnt: {pace.state}"
    if pace.pressed_share:
        why += f", {pace.pressed_share:.0%} of the calls are refused"
    return f"{at_once}, {pace.rpm:,.0f} a minute ({why})"


def waiting_for(account: DispatchStatistics) -> str:
    """Names the one thing that the next verdict waits for."""
    governors = account.governors
    if governors.endpoints and all(endpoint.breaker.state != "closed" for endpoint in governors.endpoints):
        return f"the service to come back ({safe(governors.endpoints[0].breaker.last_failure or 'it failed')})"
    if governors.pace.stopped_for_s > 0:
        return f"the end of a Retry-After, {duration(governors.pace.stopped_for_s)} more"
    if not account.waiting:
        last = "the last answer" if account.in_flight == 1 else f"the last {account.in_flight} answers"
        return last if account.in_flight else "retries that are not due yet"
    if account.in_flight >= governors.concurrency.limit:
        return f"answers: all {governors.concurrency.limit} slots are in use"
    return "the rate limit" if governors.pace.rpm is not None else "slots to fill"


class AgentView:
    """Shows what an agent does until its block ends."""

    def __init__(self, agent: RewardAgent, total: int, console: Console) -> None:
        self._agent = agent
        self._total = total
        self._console = console
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._done_by_second: deque[int] = deque([0], maxlen=SPARK_SECONDS + 1)
        self._next_second_s = self._began_s + 1.0

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows the agent while the block runs."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch())
            try:
                yield
            finally:
                watching.cancel()

    async def _watch(self) -> None:
        """Redraws by the clock, not by events: thousands of verdicts a second would redraw the screen as often."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            while True:
                await asyncio.sleep(PLAIN_EVERY_S)
                self._sample()
                self._console.print(self.line(), soft_wrap=True)
        from rich.live import Live

        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                self._sample()
                live.update(self.picture(), refresh=True)
                await asyncio.sleep(TICK_S)

    def _sample(self) -> None:
        now, done = self._loop.time(), _num_done(self._agent.statistics())
        while now >= self._next_second_s:
            self._done_by_second.append(done)
            self._next_second_s += 1.0

    def _rates(self) -> list[int]:
        """Returns the number of verdicts in each of the last seconds."""
        done = list(self._done_by_second)
        return [later - earlier for earlier, later in itertools.pairwise(done)]

    def _pace(self, statistics: AgentStatistics) -> tuple[str, str]:
        """Returns the rate of verdicts and the time left. Leaves out verdicts from the journal, which take no time."""
        done = _num_done(statistics)
        judged = done - statistics.verdicts.cached
        elapsed_s = self._loop.time() - self._began_s
        if judged <= 0 or elapsed_s < 1.0:
            return "", ""
        a_second = judged / elapsed_s
        rate = f"{a_second:,.0f}" if a_second >= 10 else f"{a_second:.2g}"
        return f"{rate} a second", f"about {duration((self._total - done) / a_second)} left"

    def line(self) -> str:
        statistics = self._agent.statistics()
        done = _num_done(statistics)
        rate, time_left = self._pace(statistics)
        parts = [
            f"{self._loop.time() - self._began_s:4.0f} s",
            f"{done:,} of {self._total:,} done",
            f"{_num_failed(statistics)} failed",
            f"{statistics.in_flight} in flight",
            f"{statistics.waiting:,} waiting",
            *(_of_account(account, statistics, limits_text(account)) for account in statistics.accounts),
            rate,
            f"{num_retries(statistics):,} retries",
            dollars(statistics.ledger.spent_usd),
            time_left,
            *(f"waits for {waiting_for(account)}" for account in _busy(statistics)),
        ]
        return "; ".join(part for part in parts if part)

    def picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        statistics = self._agent.statistics()
        done = _num_done(statistics)
        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(ratio=1)
        head.add_row(
            ProgressBar(total=max(self._total, 1), completed=done),
            Text(f"{done:,} of {self._total:,}", "bold"),
            Text(self._pace(statistics)[1]),
        )
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim", no_wrap=True)
        for label, text in self._rows(statistics):
            body.add_row(label, text)
        return Group(head, body)

    def _rows(self, statistics: AgentStatistics) -> Iterator[tuple[str, Text]]:
        from rich.text import Text

        failed = _num_failed(statistics)
        verdicts = Text.assemble(
            (f"{statistics.verdicts.scored:,} scored", "green"),
            "   ",
            (f"{failed:,} failed", "red" if failed else ""),
            f"   {statistics.in_flight:,} in flight   {statistics.waiting:,} waiting",
        )
        yield "verdicts", verdicts
        for account in statistics.accounts:
            yield "limits", Text(_of_account(account, statistics, limits_text(account)))
        hedges = sum(account.hedges for account in statistics.accounts)
        yield (
            "calls",
            Text(
                f"{statistics.calls:,}   {num_retries(statistics):,} retries   {hedges:,} hedges"
                f"   {dollars(statistics.ledger.spent_usd)}"
            ),
        )
        for account in _busy(statistics):
            text = _of_account(account, statistics, waiting_for(account))
            yield "waits for", Text(text, overflow="ellipsis", no_wrap=True)
        rates = self._rates()
        spark = sparkline(rates, ascii_only=self._console.options.ascii_only)
        yield "verdicts a second", Text.assemble((spark, "cyan"), f" {rates[-1] if rates else 0}")


def _busy(statistics: AgentStatistics) -> Sequence[DispatchStatistics]:
    """Returns the accounts with calls in flight or waiting; all accounts if only retries are left."""
    return [account for account in statistics.accounts if account.in_flight or account.waiting] or statistics.accounts


def _of_account(account: DispatchStatistics, statistics: AgentStatistics, text: str) -> str:
    """Adds the account's name to a text where the agent has several accounts."""
    return text if len(statistics.accounts) == 1 else f"{safe(account.account)}: {text}"


def num_retries(statistics: AgentStatistics) -> int:
    """Estimates the retries from the calls that ended in a retryable fault; the run's events hold exact counts."""
    faults = ("rate_limited", "service", "timeout", "unparsable")
    ended = sum(account.outcomes.get(kind, 0) for account in statistics.accounts for kind in faults)
    return max(0, ended - sum(statistics.verdicts.failed.get(kind, 0) for kind in faults))


def _num_done(statistics: AgentStatistics) -> int:
    return statistics.verdicts.scored + _num_failed(statistics)


def _num_failed(statistics: AgentStatistics) -> int:
    return sum(statistics.verdicts.failed.values())
