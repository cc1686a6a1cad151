"""`rewardflow serve`: serves one reward agent over HTTP until somebody interrupts it.

Always true: the first line on stdout is the address, written when the server answers. Ctrl-C and SIGTERM end it in
order. The output holds no key and no token.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import orjson

from rewardflow.cli.display import stderr_console
from rewardflow.cli.options import add_agent_flags, options_of
from rewardflow.cli.safe_text import safe
from rewardflow.serve.agent_server import AgentServer
from rewardflow.serve.settings import HOST, PORT, ServeSettings
from rewardflow.settings.loading import read_mapping
from rewardflow.shared_agent.spec import AgentSpec

_GIVEN = ("host", "port", "token_env", "tls_certificate", "tls_key")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves verdicts to any trainer: the Python client (rewardflow.serve.connect), plain HTTP (/v1/score),\n"
        "OpenRLHF (/openrlhf), slime and miles (/slime), NeMo Gym (/verify), and chat completions for own reward code."
    )
    parser.add_argument("reward", metavar="REWARD", help="file.py:name, package.module:name or a YAML file")
    parser.add_argument("--host", metavar="ADDRESS", help=f"the address to listen on ({HOST})")
    parser.add_argument("--port", type=int, metavar="N", help=f"the port; 0 takes any free one ({PORT})")
    parser.add_argument("--token-env", metavar="NAME", help="the variable of a token that every request must have")
    parser.add_argument("--tls-certificate", metavar="FILE", help="serve https with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM)")
    parser.add_argument("--json", action="store_true", help="print the address as JSON")
    add_agent_flags(parser, without=("run", "run_dir"))


def run(args: argparse.Namespace) -> int:
    contents, folder = _contents(args.reward)
    given = {name: value for name in _GIVEN if (value := getattr(args, name)) is not None}
    settings = ServeSettings.of(contents.pop("serve", {}) if isinstance(contents, dict) else {}, **given)
    spec = AgentSpec.of(contents, folder=folder, **options_of(args))
    asyncio.run(_serve(AgentServer(spec.build, settings), as_json=args.json))
    return 0


def _contents(reward: str) -> tuple[str | dict[str, Any], Path | None]:
    """Returns the contents of a reward's file and its folder, or the reward's name."""
    if not reward.endswith((".yaml", ".yml")):
        return reward, None
    path = Path(reward).absolute()
    return dict(read_mapping(path, what="a reward file")), path.parent


async def _serve(server: AgentServer, *, as_json: bool) -> None:
    async with server:
        line = orjson.dumps({"url": server.url}).decode() if as_json else f"rewardflow serves at {server.url}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        stderr_console().print(f"{safe(server.url)}/openapi.json describes it; Ctrl-C stops it", soft_wrap=True)
        await asyncio.get_running_loop().create_future()
