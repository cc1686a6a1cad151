"""`rewardflow agent`: starts, shows and stops the reward agent that several training runs share on a Ray cluster.

Always true: the output holds no key: the actor reads keys from its own environment, and the command never shows the
settings of a reward.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Sequence

import orjson

from rewardflow.cli.options import add_agent_flags, options_of
from rewardflow.cli.safe_text import safe
from rewardflow.errors import InvalidInput, SharedAgentGone
from rewardflow.runtime.on_ray.cluster import joined
from rewardflow.shared_agent import ray_actor
from rewardflow.shared_agent.messages import HostStatistics
from rewardflow.shared_agent.spec import AgentSpec

NOT_THERE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="agent_command", required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="start the agent, or find it if it runs with the same settings")
    start.add_argument("reward", metavar="REWARD", help="file.py:name, package.module:name or a YAML file")
    start.add_argument(
        "--env", action="append", default=[], metavar="NAME", help="an environment variable to pass on, such as a key's"
    )
    start.add_argument(
        "--resource", action="append", default=[], metavar="NAME=X", help="a Ray resource its node must have"
    )
    add_agent_flags(start, without=("run", "run_dir"))
    status = commands.add_parser("status", help="show the agent's calls, clients and costs")
    stop = commands.add_parser("stop", help="stop the agent for good and close its journal")
    for command in (start, status, stop):
        command.add_argument(
            "--name", default=ray_actor.NAME, metavar="NAME", help=f"the agent's name ({ray_actor.NAME})"
        )
        command.add_argument(
            "--namespace",
            default=ray_actor.NAMESPACE,
            metavar="NAME",
            help=f"the namespace in Ray ({ray_actor.NAMESPACE})",
        )
        command.add_argument(
            "--address", default="auto", metavar="ADDRESS", help="the address of the Ray cluster (auto)"
        )
    for command in (start, status):
        command.add_argument("--json", action="store_true", help="print all statistics as one JSON object")


def run(args: argparse.Namespace) -> int:
    where = {"name": args.name, "namespace": args.namespace}
    if args.agent_command == "start":
        spec = AgentSpec.of(args.reward, **options_of(args))
        env, resources = _environment(args.env), _resources(args.resource)
        with joined(args.address):
            _show(ray_actor.start(spec, env=env, resources=resources, **where), args)
        return 0
    with joined(args.address):
        if args.agent_command == "stop":
            was_there = ray_actor.stop(**where)
            sys.stdout.write(f"{safe(args.name)} {'is stopped' if was_there else 'was not there'}\n")
            return 0 if was_there else NOT_THERE
        try:
            _show(ray_actor.status(**where), args)
        except SharedAgentGone as gone:
            sys.stderr.write(f"{safe(str(gone))}\n")
            return NOT_THERE
    return 0


def _environment(names: Sequence[str]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InvalidInput(f"--env must name variables that are set here, got {', '.join(missing)}")
    return {name: os.environ[name] for name in names}


def _resources(settings: Sequence[str]) -> dict[str, float]:
    resources = {}
    for setting in settings:
        name, _, amount = setting.partition("=")
        with contextlib.suppress(ValueError):
            resources[name] = float(amount)
        if not name or not 0 < resources.get(name, 0) < math.inf:
            raise InvalidInput(f"--resource takes NAME=X with a number above 0, got {setting!r}")
    return resources


def _show(statistics: HostStatistics, args: argparse.Namespace) -> None:
    if args.json:
        text = orjson.dumps(dataclasses.asdict(statistics), default=str, option=orjson.OPT_INDENT_2).decode()
    else:
        text = "\n".join(lines_of(statistics, args.name))
    sys.stdout.write(text + "\n")


def lines_of(statistics: HostStatistics, name: str) -> Iterator[str]:
    agent = statistics.agent
    halt = f", halted: {safe(statistics.halt.message)}" if statistics.halt is not None else ""
    yield f"{safe(name)}: up {statistics.up_s:,.0f} s, process {statistics.pid} on node {statistics.node[:8]}{halt}"
    failed = ", ".join(f"{count:,} {kind}" for kind, count in agent.verdicts.failed.items())
    yield (
        f"verdicts: {agent.verdicts.scored:,} scored ({agent.verdicts.cached:,} from the journal)"
        f"{', failed: ' + failed if failed else ''}; spent {agent.ledger.spent_usd:.4g} USD"
    )
    for account in agent.accounts:
        limit = account.governors.concurrency.limit
        yield f"account {safe(account.account)}: {account.in_flight:,} of {limit:,} slots, {account.waiting:,} waiting"
        for lane in account.runs:
            yield (
                f"  run {safe(lane.run)} (share {lane.share:g}): {lane.in_flight:,} in flight, {lane.waiting:,} waiting"
            )
    yield f"clients: {len(statistics.clients)}"
    for client in statistics.clients:
        yield f"  {client.client[:8]} of run {safe(client.run)}: {client.out:,} out, {client.untaken:,} to be taken"
