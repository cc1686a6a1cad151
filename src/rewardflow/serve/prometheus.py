"""Figures of the server as text for Prometheus.

Always true: a figure has one name, a type and a help line; labels are escaped. Reading them costs no call and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from rewardflow.reward.agent_statistics import AgentStatistics
from rewardflow.reward.calls.call_records import DispatchStatistics
from rewardflow.reward.limits.ledger import LedgerStatistics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Figure(NamedTuple):
    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, str], float]]


def prometheus_text(
    agents: Mapping[str, AgentStatistics],
    runs: Mapping[str, LedgerStatistics],
    waiting: Mapping[str, int],
    *,
    up_s: float,
) -> str:
    """`agents` are those behind the server by name, `runs` what each run costs, `waiting` its requests."""
    lines: list[str] = []
    for figure in _figures(agents, runs, waiting, up_s):
        lines += [f"# HELP {figure.name} {figure.help}", f"# TYPE {figure.name} {figure.kind}"]
        lines += [f"{figure.name}{_labels(labels)} {value:.17g}" for labels, value in figure.samples]
    return "\n".join(lines) + "\n"


def _figures(
    agents: Mapping[str, AgentStatistics],
    runs: Mapping[str, LedgerStatistics],
    waiting: Mapping[str, int],
    up_s: float,
) -> Iterator[_Figure]:
    yield _Figure("rewardflow_up_seconds", "gauge", "Seconds since the agent was opened.", [({}, up_s)])
    verdicts: list[tuple[Mapping[str, str], float]] = []
    for name, agent in agents.items():
        verdicts.append(({"agent": name, "outcome": "scored"}, agent.verdicts.scored))
        verdicts += [({"agent": name, "outcome": kind}, count) for kind, count in agent.verdicts.failed.items()]
    yield _Figure("rewardflow_verdicts_total", "counter", "Verdicts by outcome.", verdicts)
    cached: list[tuple[Mapping[str, str], float]] = [
        ({"agent": name}, agent.verdicts.cached) for name, agent in agents.items()
    ]
    yield _Figure("rewardflow_verdicts_reused_total", "counter", "Verdicts that needed no call.", cached)
    for name, kind, text, read in _OF_ACCOUNTS:
        samples: list[tuple[Mapping[str, str], float]] = [
            ({"agent": agent, "account": account.account}, float(read(account)))
            for agent, statistics in agents.items()
            for account in statistics.accounts
        ]
        yield _Figure(name, kind, text, samples)
    spent: list[tuple[Mapping[str, str], float]] = [({"run": run}, money.spent_usd) for run, money in runs.items()]
    yield _Figure("rewardflow_run_spent_usd", "gauge", "What each run has spent.", spent)
    caps: list[tuple[Mapping[str, str], float]] = [
        ({"run": run}, money.cap_usd) for run, money in runs.items() if money.cap_usd is not None
    ]
    yield _Figure("rewardflow_run_cap_usd", "gauge", "What each run may spend.", caps)
    queued: list[tuple[Mapping[str, str], float]] = [({"run": run}, count) for run, count in waiting.items()]
    yield _Figure("rewardflow_run_waiting", "gauge", "Requests of each run without a verdict.", queued)


_OF_ACCOUNTS: Final[tuple[tuple[str, str, str, Callable[[DispatchStatistics], float]], ...]] = (
    ("rewardflow_calls_total", "counter", "Calls to services.", lambda account: account.calls),
    ("rewardflow_retries_total", "counter", "Calls that repeated a failed one.", lambda account: account.retries),
    ("rewardflow_hedges_total", "counter", "Second calls while the first was out.", lambda account: account.hedges),
    ("rewardflow_calls_in_flight", "gauge", "Calls that are out.", lambda account: account.in_flight),
    ("rewardflow_calls_waiting", "gauge", "Calls that wait for a slot.", lambda account: account.waiting),
    (
        "rewardflow_concurrency_limit",
        "gauge",
        "Calls that may be out at a time.",
        lambda account: account.governors.concurrency.limit,
    ),
)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
