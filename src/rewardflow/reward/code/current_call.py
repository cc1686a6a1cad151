"""Lets reward code report on the call it runs in, and read it.

Always true: the functions here work the same in a coroutine, a thread or a process, and do nothing outside a call, so
that users can try reward code by hand. One line each:

    rf.report_usage(cost_usd=0.002, tokens=812)        # what this call cost
    rf.report_headers(response.headers)                # x-ratelimit-*: teaches the pace
    raise rf.RateLimited(retry_after_s=7)              # this was a 429
    rf.current_call().endpoint                         # which of `endpoints` to talk to
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rewardflow.errors import InvalidInput
from rewardflow.types import Rollout


@dataclass(slots=True)
class Call:
    """One attempt at one reward call, as the reward code sees it."""

    rollouts: tuple[Rollout, ...]
    attempt: int = 1
    endpoint: str | None = None
    cost_usd: float = 0.0
    tokens: int = 0
    is_cost_known: bool = False  # true also when the reported cost is 0
    headers: dict[str, str] | None = None
    num_unpriced: int = 0  # requests sent for this call whose cost is not known
    cached_tokens: int = 0  # of `tokens`, those of the prompt that the service had computed before
    cache_saved_usd: float = 0.0  # what these would have cost more
    reserved_usd: float = 0.0  # what the journal holds in reserve for this call; 0 without a cap or a journal


# More than a call can use. Sums of such numbers stay finite, and within the journal's integers, which end at 2**63.
MAX_CALL_TOKENS: Final = 10**12
MAX_CALL_USD: Final = 1e12

_current_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("rewardflow_call", default=None)

enter_call = _current_call.set


def current_call() -> Call | None:
    """Returns the call that this code runs in, or None outside a call."""
    return _current_call.get()


@contextlib.contextmanager
def outside_call() -> Iterator[None]:
    """Hides the call from a block that works for several calls, so that nothing is reported for this one alone."""
    call = _current_call.get()
    _current_call.set(None)
    try:
        yield
    finally:
        _current_call.set(call)  # not by a token: a cancelled coroutine may be closed in another context


def report_usage(
    *, cost_usd: float | None = None, tokens: int = 0, cached_tokens: int = 0, cache_saved_usd: float = 0.0
) -> None:
    """Adds to the cost of this call. Call it as soon as the service has answered, before parsing can fail.

    In a call that sends several requests, call it after each of them: the agent does not see the requests.
    `cost_usd=0.0` means that the call was free. A call without any report counts as `call_cost_usd`, or else as what
    the agent reserved for it. `cached_tokens` are those of `tokens` that the service took from its cache of prompts,
    and `cache_saved_usd` is what they would have cost more.
    """
    if (cost_usd is not None and not 0 <= cost_usd <= MAX_CALL_USD) or not 0 <= tokens <= MAX_CALL_TOKENS:
        raise InvalidInput(
            f"usage must not be negative, and at most {MAX_CALL_TOKENS} tokens and {MAX_CALL_USD:.0f} USD, got "
            f"cost_usd={cost_usd}, tokens={tokens}"
        )
    if not 0 <= cached_tokens <= tokens or not 0 <= cache_saved_usd < math.inf:
        raise InvalidInput(
            f"cached_tokens must be at most tokens, and cache_saved_usd finite and not negative, got "
            f"cached_tokens={cached_tokens}, tokens={tokens}, cache_saved_usd={cache_saved_usd}"
        )
    call = _current_call.get()
    if call is not None:
        call.tokens += tokens
        call.cached_tokens += cached_tokens
        call.cache_saved_usd += cache_saved_usd
        if cost_usd is not None:
            call.cost_usd += cost_usd
            call.is_cost_known = True


@contextlib.contextmanager
def request_of_unknown_cost(is_free: Callable[[Exception], bool]) -> Iterator[Callable[[], None]]:
    """Counts a request as one of unknown cost until its block calls the function that it gets.

    For clients: a call may send several requests, and one of them may break off after others told their cost. An error
    that `is_free` means that the service cannot have charged for the request.
    """
    call = _current_call.get()
    is_open = True

    def close() -> None:
        nonlocal is_open
        if is_open and call is not None:
            call.num_unpriced -= 1
        is_open = False

    if call is not None:
        call.num_unpriced += 1
    try:
        yield close
    except Exception as error:
        if is_free(error):
            close()
        raise


def drop_odd_usage(call: Call) -> None:
    """Makes a cost or a count unknown that no call can have: reward code can set the fields of its call to anything."""
    if call.tokens == call.cached_tokens == 0 and call.cost_usd == call.cache_saved_usd == 0.0:
        return  # most calls that are not a judge's
    if not _is_number(call.cost_usd, MAX_CALL_USD):
        call.cost_usd, call.is_cost_known = 0.0, False
        call.num_unpriced += 1
    if not isinstance(call.tokens, int) or not 0 <= call.tokens <= MAX_CALL_TOKENS:
        call.tokens = 0
    if not isinstance(call.cached_tokens, int) or not 0 <= call.cached_tokens <= call.tokens:
        call.cached_tokens = 0
    if not _is_number(call.cache_saved_usd, MAX_CALL_USD):
        call.cache_saved_usd = 0.0


def _is_number(value: object, most: float) -> bool:
    return isinstance(value, int | float) and 0 <= value <= most  # false for NaN


def report_headers(headers: Mapping[str, str]) -> None:
    """Passes a response's headers to the agent, which reads only those about limits and stores none."""
    call = _current_call.get()
    if call is not None:
        lowered = {name.lower(): str(value) for name, value in headers.items()}
        limits = {name: value for name, value in lowered.items() if "ratelimit" in name or name == "retry-after"}
        call.headers = {**(call.headers or {}), **limits}
