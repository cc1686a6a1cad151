"""`rewardflow mock-judge`: serves a slow, limited and faulty judge on this machine until somebody interrupts it.

Always true: the first line on stdout is the address, and is written before the first request can arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import fields
from typing import Any, Final

import orjson

from rewardflow.cli.display import stderr_console
from rewardflow.mock_judge import FAULTS, MockJudge, MockJudgeSettings
from rewardflow.mock_judge.settings import SCORES, parse_faults

PORT: Final = 8077
_DEFAULTS: Final = MockJudgeSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves chat completions, /v1/models, /stats, /health, /admin/down and /admin/up. Score, delay and fault\n"
        "of a call depend on the seed, the request and how often it was sent before, and on nothing else."
    )
    _add_service_options(parser)
    _add_batch_options(parser)
    _add_limit_options(parser)
    parser.add_argument("--host", default=_DEFAULTS.host, help=f"the address to listen on ({_DEFAULTS.host})")
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"the port to listen on; 0 takes any free port ({PORT})"
    )
    parser.add_argument("--json", action="store_true", help="print the address and, at the end, the counts as JSON")


def _add_service_options(parser: argparse.ArgumentParser) -> None:
    service = parser.add_argument_group("the service")
    service.add_argument(
        "--seed", type=int, default=_DEFAULTS.seed, metavar="N", help="the seed of scores, delays and faults (0)"
    )
    service.add_argument(
        "--scores",
        choices=SCORES,
        default=_DEFAULTS.scores,
        help="make scores up, or compare the answer with the reference in the prompt (made_up)",
    )
    service.add_argument(
        "--latency",
        default=_DEFAULTS.latency,
        metavar="DIST",
        help="seconds a call: constant:2, uniform:1,40, lognormal:5,1 (median, sigma), exponential:5 (mean), "
        "bimodal:1,30,0.1 (fast, slow, share of slow), bimodal (the same), quantiles:50=4,99=30, "
        f"journal:PATH ({_DEFAULTS.latency})",
    )
    service.add_argument(
        "--scale",
        type=float,
        default=_DEFAULTS.scale,
        metavar="X",
        help="multiply all times by this, also the limits' minute (1.0)",
    )
    service.add_argument(
        "--faults", default="", metavar="NAME=SHARE,...", help=f"shares of calls that fail; names: {', '.join(FAULTS)}"
    )
    for name, unit, meaning in (
        ("retry_after_s", "S", "the Retry-After of 429_retry_after"),
        ("hang_s", "S", "how long a hang lasts"),
        ("slow_body_s", "S", "how long a slow body takes"),
    ):
        default = getattr(_DEFAULTS, name)
        service.add_argument(_flag(name), type=float, default=default, metavar=unit, help=f"{meaning} ({default:g})")
    service.add_argument(
        "--huge-body-bytes",
        type=int,
        default=_DEFAULTS.huge_body_bytes,
        metavar="N",
        help="the size of a huge body (64 MiB)",
    )
    service.add_argument(
        "--model", default=_DEFAULTS.model, metavar="NAME", help=f"the model's name ({_DEFAULTS.model})"
    )
    service.add_argument(
        "--no-schema", dest="takes_schema", action="store_false", help="answer 400 to a JSON schema, as some servers do"
    )
    service.add_argument(
        "--caches-prompts", action="store_true", help="reuse the beginnings of prompts, and report the cached tokens"
    )
    service.add_argument(
        "--no-log-probs", dest="gives_log_probs", action="store_false", help="leave log-probs out, as some servers do"
    )


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    batches = parser.add_argument_group("batches, under /v1/batches and /v1/messages/batches")
    batches.add_argument(
        "--batch-latency",
        default=_DEFAULTS.batch_latency,
        metavar="DIST",
        help=f"seconds a batch takes, as --latency ({_DEFAULTS.batch_latency})",
    )
    batches.add_argument(
        "--batch-expired-share",
        type=float,
        default=_DEFAULTS.batch_expired_share,
        metavar="X",
        help="the share of a batch's requests that expire the first time (0)",
    )
    batches.add_argument(
        "--lost-creations",
        type=int,
        default=_DEFAULTS.lost_creations,
        metavar="N",
        help="break the connection after the creation of the first N batches, before the answer (0)",
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits; calls above them are answered 429")
    limits.add_argument("--max-concurrency", type=int, metavar="N", help="calls at once (no limit)")
    limits.add_argument("--rpm", type=float, metavar="N", help="requests a minute (no limit)")
    limits.add_argument("--tpm", type=float, metavar="N", help="tokens a minute (no limit)")
    limits.add_argument(
        "--burst-s",
        type=float,
        default=_DEFAULTS.burst_s,
        metavar="S",
        help=f"a burst may use this many seconds' worth of a rate ({_DEFAULTS.burst_s:g})",
    )
    limits.add_argument(
        "--no-retry-after", dest="says_retry_after", action="store_false", help="send no Retry-After with a refusal"
    )
    limits.add_argument(
        "--no-limit-headers", dest="says_limits", action="store_false", help="do not send x-ratelimit-* headers"
    )


def run(args: argparse.Namespace) -> int:
    judge = MockJudge(settings_of(args))
    try:
        asyncio.run(_serve(judge, as_json=args.json))
    finally:
        if args.json:
            _write_json(judge.statistics().to_json())
    return 0


def settings_of(args: argparse.Namespace) -> MockJudgeSettings:
    given: dict[str, Any] = {field.name: getattr(args, field.name) for field in fields(MockJudgeSettings) if field.init}
    return MockJudgeSettings(**{**given, "faults": parse_faults(args.faults)})


async def _serve(judge: MockJudge, *, as_json: bool) -> None:
    async with judge:
        if as_json:
            _write_json({"base_url": judge.base_url, "url": judge.url})
        else:
            sys.stdout.write(f"the mock judge listens at {judge.base_url}\n")
            sys.stdout.flush()
            stderr_console().print(f"counts: {judge.url}/stats; Ctrl-C stops it", soft_wrap=True)
        await asyncio.get_running_loop().create_future()


def _write_json(data: dict[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(data).decode() + "\n")
    sys.stdout.flush()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
