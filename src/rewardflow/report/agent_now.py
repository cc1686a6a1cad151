"""Shows what the agent of a running run does now: calls in flight, the queue, and the limits in force.

Always true: it reads the end of events.jsonl only, and shows nothing of a run that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewardflow.drawing.markup import Child, Markup
from rewardflow.drawing.scales import figure
from rewardflow.errors import InvalidInput
from rewardflow.observe.events import AccountLoad, from_json
from rewardflow.report.line_reading import tail_lines
from rewardflow.report.page_parts import section, table
from rewardflow.report.run_data import RunData


def read_loads(run: RunData) -> tuple[AccountLoad, ...]:
    """Returns the last load of each account in the run's present session; of a run that has ended, none."""
    if run.state != "running":
        return ()
    loads: dict[str, AccountLoad] = {}
    for line in tail_lines(run.directory.events_path):
        name = line.get("event")
        if name in ("AgentClosed", "AgentOpened"):
            break
        if name != AccountLoad.__name__:
            continue
        try:
            load = from_json(line)
        except InvalidInput:  # of a later release
            continue
        if isinstance(load, AccountLoad):
            loads.setdefault(load.account, load)
    return tuple(sorted(loads.values(), key=lambda load: load.account))


def now_section(loads: Sequence[AccountLoad]) -> Markup | None:
    if not loads:
        return None
    rows: list[list[Child]] = [
        [
            load.account,
            f"{load.in_flight:,} of {load.limit:,}",
            f"{load.waiting:,}",
            "no limit met" if load.rpm is None else figure(load.rpm),
            "all work" if not load.broken else f"{load.broken} broken",
        ]
        for load in loads
    ]
    headings = ["account", "calls in flight", "calls waiting", "requests a minute", "endpoints"]
    return section("now", "The agent now", table(headings, rows))
