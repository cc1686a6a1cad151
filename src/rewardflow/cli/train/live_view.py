"""Shows a training run: a live picture on a terminal, elsewhere a line for each step.

Always true: progress goes to stderr; every figure comes from `statistics()` or from a step's report; lines come at most
every few seconds and, if steps are long, at least every half minute. A narrow terminal cuts the limits and the curve,
never a figure, and the last row leaves room for the `^C` that a terminal echoes: on a full row it would move the
picture, and the next one would not cover it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rewardflow.cli.agent_view import limits_text, waiting_for
from rewardflow.cli.display import PLAIN_EVERY_S, TICK_S, dollars, duration, sparkline
from rewardflow.cli.safe_text import safe
from rewardflow.cli.train.totals import TrainTotals
from rewardflow.cli.train.validation_text import number, under_way_text, validation_text
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import FlowStatistics
from rewardflow.flow.validation.validation_report import Validated, ValidationReport
from rewardflow.reward.agent_statistics import AgentStatistics
from rewardflow.shared_agent.remote_calls import ClientStatistics

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rewardflow.runtime.open_run import OpenRun

HEARTBEAT_S = 30.0
CURVE_WIDTH = 60
LEAST_CURVE_WIDTH = 8
LABEL_WIDTH = 13  # of the longest label that every run has, and the gap after it
ECHO_WIDTH = 2  # of the ^C that a terminal echoes
WARNINGS_SHOWN = 2  # the latest ones; the log and metrics.jsonl have all
SHOWN_FROM_S = 0.0005  # less would be shown as 0 ms
WORK_SHOWN = {
    "generate": "generating",
    "log_probs": "taking log-probs",
    "validate": "generating for validation",
    "update": "updating",
    "publish": "publishing",
}
CAUSE_SHOWN = {
    "reward": "waits for verdicts",
    "generation": "waits for generation",
    "weights": "waits for weights",
    "validation": "waits for validation",
    "checkpoint": "waits for a checkpoint",
    "other": "is idle",
}


class TrainView:
    """Collects reports through `add` and shows them while the block of `shown` runs."""

    def __init__(self, num_steps: int, console: Console) -> None:
        self.totals = TrainTotals()
        self.validations: list[ValidationReport] = []  # in order of arrival
        self._num_steps = num_steps
        self._console = console
        self._run: OpenRun | None = None
        self._first_step = 0  # of this process, if it resumed the run
        self._last_line_s = -math.inf

    def add(self, report: StepReport) -> None:
        self.totals.add(report)
        if self._run is not None and not self._is_live:
            self._print_line(self._run, at_least_after_s=PLAIN_EVERY_S)

    def add_validation(self, validated: Validated) -> None:
        """Prints a line for each validation, also on a terminal: they are few."""
        self.validations.append(validated.report)
        self._console.print(f"validation: {validation_text(validated.report)}", soft_wrap=True)

    @contextlib.asynccontextmanager
    async def shown(self, run: OpenRun) -> AsyncIterator[None]:
        self._run = run
        self._first_step = run.start.next_step
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(run))
            try:
                yield
            finally:
                watching.cancel()

    @property
    def num_trained(self) -> int:
        return self._first_step + self.totals.num_steps

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    async def _watch(self, run: OpenRun) -> None:
        """Redraws by the clock: verdicts come by the thousand, and steps may take minutes."""
        while not self._is_live:
            await asyncio.sleep(HEARTBEAT_S)
            self._print_line(run, at_least_after_s=HEARTBEAT_S)
        from rich.live import Live

        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self.picture(run.flow.statistics(), run.agent.statistics()), refresh=True)
                await asyncio.sleep(TICK_S)

    # ---- lines ----------------------------------------------------------------------------------------------------

    def _print_line(self, run: OpenRun, *, at_least_after_s: float) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_line_s >= at_least_after_s:
            self._last_line_s = now
            self._console.print(self.line(run.flow.statistics(), run.agent.statistics()), soft_wrap=True)

    def line(self, flow: FlowStatistics, agent: AgentStatistics | ClientStatistics) -> str:
        last = self.totals.last
        parts = [f"step {self.num_trained:,} of {self._num_steps:,}"]
        if last is not None:
            parts += [
                f"score {number(last.score_mean)}",
                f"{duration(last.duration_s)} ({_split(last)})",
                f"reward {duration(last.usage.exposed_s)} exposed, {duration(last.usage.hidden_s)} hidden",
                f"staleness {_staleness(last)}",
                _lost(last.failed, last.dropped),
            ]
        parts += [f"device {_doing(flow)}", f"{flow.verdicts_out:,} verdicts out"]
        parts += [f"validation {under_way_text(one)}" for one in flow.validations]
        parts += [*_agent_parts(agent), self._left()]
        return "; ".join(part for part in parts if part)

    def _left(self) -> str:
        left_s = self.totals.left_s(self._num_steps - self.num_trained)
        return "" if left_s is None else f"about {duration(left_s)} left"

    # ---- picture --------------------------------------------------------------------------------------------------

    def picture(self, flow: FlowStatistics, agent: AgentStatistics | ClientStatistics) -> RenderableType:
        from rich.console import Group
        from rich.constrain import Constrain
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(ratio=1)
        head.add_row(
            ProgressBar(total=self._num_steps, completed=self.num_trained),
            Text(f"step {self.num_trained:,} of {self._num_steps:,}", "bold"),
            Text(self._left()),
        )
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim", no_wrap=True)
        for label, text in self._rows(flow, agent):
            body.add_row(label, text)
        return Group(head, Constrain(body, self._console.width - ECHO_WIDTH))

    def _rows(
        self, flow: FlowStatistics, agent: AgentStatistics | ClientStatistics
    ) -> Iterator[tuple[str, RenderableType]]:
        from rich.text import Text

        last = self.totals.last
        scores = self.totals.scores
        if scores:
            ends = f" {number(scores[0])} -> {number(scores[-1])}"
            room = self._console.width - ECHO_WIDTH - LABEL_WIDTH - len(ends)
            width = max(LEAST_CURVE_WIDTH, min(CURVE_WIDTH, room))
            curve = reward_curve(scores, width, ascii_only=self._console.options.ascii_only)
            yield "score", Text.assemble((curve, "green"), ends, no_wrap=True, overflow="crop")
        ready = f"{flow.num_ready:,} of {flow.num_untrained:,} groups ready"
        yield "device", Text(f"{_doing(flow)}   {flow.verdicts_out:,} verdicts out   {ready}", _style(flow))
        if last is not None:
            yield "step time", Text(f"{duration(last.duration_s)}   {_split(last)}")
            usage = last.usage
            yield "reward time", Text(f"{duration(usage.exposed_s)} exposed   {duration(usage.hidden_s)} hidden")
            yield "staleness", Text(_staleness(last))
        texts = [validation_text(report) for report in self.validations[-1:]]
        texts += [under_way_text(one) for one in flow.validations]
        if texts:
            yield "validation", Text("   ".join(texts), no_wrap=True, overflow="ellipsis")
        totals = self.totals
        lost = _lost(totals.failed, totals.dropped)
        yield "lost", Text(lost or "nothing", "red" if lost else "")
        for warning in totals.warnings[-WARNINGS_SHOWN:]:
            yield "warning", Text(safe(warning), "yellow")
        yield "agent", Text("   ".join(_agent_parts(agent)), no_wrap=True, overflow="ellipsis")
        for account in () if isinstance(agent, ClientStatistics) else agent.accounts:
            if account.in_flight or account.waiting:
                yield "waits for", Text(waiting_for(account), no_wrap=True, overflow="ellipsis")


def reward_curve(scores: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Draws the scores over the steps, scaled from the lowest to the highest; several steps may share a character."""
    num_places = min(len(scores), width)
    starts = [place * len(scores) // num_places for place in range(num_places + 1)]
    means = [sum(scores[start:stop]) / (stop - start) for start, stop in itertools.pairwise(starts)]
    lowest = min(means)
    return sparkline([mean - lowest for mean in means], ascii_only=ascii_only)


def _doing(flow: FlowStatistics) -> str:
    if flow.work is not None:
        return WORK_SHOWN.get(flow.work, flow.work)
    return CAUSE_SHOWN.get(flow.waits_for, flow.waits_for)


def _style(flow: FlowStatistics) -> str:
    return "yellow" if flow.work is None and flow.waits_for == "reward" else ""


def _split(report: StepReport) -> str:
    """Lists the device's work in the step, without work that took no time."""
    names = {"generate": "generate", "log_probs": "log-probs", "update": "update", "publish": "publish"}
    busy_s = report.usage.busy_s.items()
    parts = [f"{names.get(work, work)} {duration(spent_s)}" for work, spent_s in busy_s if spent_s >= SHOWN_FROM_S]
    return ", ".join([*parts, f"idle {duration(sum(report.usage.idle_s.values()))}"])


def _staleness(report: StepReport) -> str:
    if report.staleness_max is None or report.staleness_mean is None:
        return "none"
    return f"{report.staleness_mean:.3g} (at most {report.staleness_max})"


def _lost(failed: Mapping[str, int], dropped: Mapping[str, int]) -> str:
    kinds = [f"{count:,} {safe(kind)}" for kind, count in sorted(failed.items())]
    parts = [f"{sum(failed.values()):,} verdicts failed ({', '.join(kinds)})"] if kinds else []
    parts += [f"{count:,} groups dropped ({reason.replace('_', ' ')})" for reason, count in sorted(dropped.items())]
    return ", ".join(parts)


def _agent_parts(agent: AgentStatistics | ClientStatistics) -> list[str]:
    """Describes the agent. Of a shared agent shows only this run's calls: its limits apply to all runs."""
    if isinstance(agent, ClientStatistics):
        return [f"{agent.out:,} out at the shared agent", dollars(agent.cost_usd)]
    names = [f"{safe(account.account)}: " if len(agent.accounts) > 1 else "" for account in agent.accounts]
    limits = [f"{name}{limits_text(account)}" for name, account in zip(names, agent.accounts, strict=True)]
    return [
        f"{agent.in_flight:,} in flight",
        f"{agent.waiting:,} waiting",
        dollars(agent.ledger.spent_usd),
        *limits,
    ]
