"""What reward code can say about the call it is in, and ask of it.

Always true: the functions here work the same from a coroutine, a thread or a process, and do nothing outside a call,
so that reward code can be tried by hand. One line each:

    rf.report_usage(cost_usd=0.002, tokens=812)        # what this call cost
    rf.report_headers(response.headers)                # x-ratelimit-*: teaches the pace
    raise rf.RateLimited(retry_after_s=7)              # this was a 429
    rf.current_call().endpoint                         # which of `endpoints` to talk to
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rewardflow.errors import InvalidInput
from rewardflow.types import Rollout


@dataclass(slots=True)
class Call:
    """One attempt at one reward call, as the code inside it sees it."""

    rollouts: tuple[Rollout, ...]
    attempt: int = 1
    endpoint: str | None = None
    cost_usd: float = 0.0
    tokens: int = 0
    is_cost_known: bool = False  # also when it was reported to be nothing
    headers: dict[str, str] | None = None


_current_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("rewardflow_call", default=None)

enter_call = _current_call.set


def current_call() -> Call | None:
    """The call this code runs in, or None outside one."""
    return _current_call.get()


def report_usage(*, cost_usd: float | None = None, tokens: int = 0) -> None:
    """Add to what this call has cost. Call it as soon as the service has answered, before parsing can fail.

    `cost_usd=0.0` says that it cost nothing; without a word the agent's `call_cost_usd` is counted.
    """
    if (cost_usd is not None and not 0 <= cost_usd < math.inf) or tokens < 0:
        raise InvalidInput(f"usage must be finite and not negative, got cost_usd={cost_usd}, tokens={tokens}")
    call = _current_call.get()
    if call is not None:
        call.tokens += tokens
        if cost_usd is not None:
            call.cost_usd += cost_usd
            call.is_cost_known = True


def report_headers(headers: Mapping[str, str]) -> None:
    """Hand over a response's headers; only those about limits are read, none is stored."""
    call = _current_call.get()
    if call is not None:
        told = {name.lower(): str(value) for name, value in headers.items()}
        limits = {name: value for name, value in told.items() if "ratelimit" in name or name == "retry-after"}
        call.headers = {**(call.headers or {}), **limits}
