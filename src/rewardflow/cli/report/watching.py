"""`rewardflow watch`: serves the reports of all runs in a folder, current while the runs go on.

Always true: it only reads the runs, and listens on a loopback address unless another one is named, which needs a token.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path
from typing import Final

import orjson

from rewardflow.cli.display import stderr_console
from rewardflow.cli.safe_text import safe

PORT: Final = 8079


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves the page of every run in a folder (docs/watch.md), and keeps it current while the runs go on: all\n"
        "runs, one run, two compared, rollouts with what the judge said. It needs no network and changes no run."
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default="runs", help="a folder of runs, or a run (runs)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on; any but a loopback one gets a token (127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"the port to listen on; 0 takes any free port ({PORT})"
    )
    parser.add_argument("--no-rollouts", action="store_true", help="leave out all texts of models and judges")
    parser.add_argument("--json", action="store_true", help="print the address as JSON")


def run(args: argparse.Namespace) -> int:
    if not Path(args.folder).exists():
        told = f"there is no folder {safe(args.folder)} yet; its runs are shown when they start"
        stderr_console().print(told, soft_wrap=True)
    asyncio.run(_serve(args))
    return 0


async def _serve(args: argparse.Namespace) -> None:
    from rewardflow.observe.own_address import is_loopback
    from rewardflow.watch.watch_server import WatchServer

    token = None if is_loopback(args.host) else secrets.token_urlsafe(24)
    server = WatchServer(Path(args.folder), host=args.host, port=args.port, token=token, rollouts=not args.no_rollouts)
    async with server:
        if args.json:
            sys.stdout.write(orjson.dumps({"url": server.url}).decode() + "\n")
        else:
            sys.stdout.write(f"the runs are shown at {server.url}\n")
        sys.stdout.flush()
        if not args.json:
            stderr_console().print("the pages stay current; Ctrl-C stops the server", soft_wrap=True)
        await asyncio.get_running_loop().create_future()
