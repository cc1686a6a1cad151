"""Defines every setting of the reward agent once: its name, its default, its rule.

Always true: a settings record that exists is valid. Building one refuses an unknown name or a broken rule, with the
name, the value and the rule.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypedDict

from rewardflow.errors import InvalidInput

AUTO: Literal["auto"] = "auto"
MAX_THREADS = 1024
MAX_REFUSED = 0.85  # what a limit without a burst costs at most, to use more than four fifths of it
MOST_REFUSED = 0.95
MIN_SHARE, MAX_SHARE = 0.1, 10.0  # of a run at a shared agent: one run gets at most 100 times what another gets


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """How the calls of one service account are governed. `docs/settings.md` explains each."""

    max_concurrency: int | Literal["auto"] = 64
    rpm: float | Literal["auto"] | None = AUTO
    tpm: float | Literal["auto"] | None = AUTO
    max_refused: float = MAX_REFUSED
    timeout_s: float | None = 120.0
    verdict_timeout_s: float | None = None
    max_attempts: int = 3
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    retry_budget: float = 0.25
    hedge_quantile: float | None = None
    hedge_share: float = 0.05
    endpoints: Sequence[str] = ()
    outage_share: float | None = 0.8
    outage_window: int = 20
    outage_give_up_s: float = 600.0
    workers: Literal["thread", "process"] = "thread"
    processes: int | None = None
    max_abandoned: int = 64

    def __post_init__(self) -> None:
        if self.max_concurrency != AUTO:
            _whole("max_concurrency", self.max_concurrency, at_least=1)
        for name in ("rpm", "tpm"):
            if getattr(self, name) != AUTO:
                _positive(name, getattr(self, name), none_ok=True)
        if not _is_number(self.max_refused) or not 0 <= self.max_refused <= MOST_REFUSED:
            raise InvalidInput(f"max_refused must lie in [0, {MOST_REFUSED}], got {self.max_refused!r}")
        for name in ("timeout_s", "verdict_timeout_s"):
            _positive(name, getattr(self, name), none_ok=True)
        _whole("max_attempts", self.max_attempts, at_least=1)
        _positive("backoff_s", self.backoff_s)
        _positive("max_backoff_s", self.max_backoff_s)
        _not_negative("retry_budget", self.retry_budget)
        _share("hedge_quantile", self.hedge_quantile)
        _share("hedge_share", self.hedge_share)
        _share("outage_share", self.outage_share)
        _whole("outage_window", self.outage_window, at_least=1)
        _not_negative("outage_give_up_s", self.outage_give_up_s)
        _one_of("workers", self.workers, ("thread", "process"))
        if self.processes is not None:
            _whole("processes", self.processes, at_least=1)
        _whole("max_abandoned", self.max_abandoned, at_least=0)
        if isinstance(self.endpoints, str):
            raise InvalidInput(f"endpoints must be a sequence of names, got the single string {self.endpoints!r}")
        if len(set(self.endpoints)) != len(self.endpoints):
            raise InvalidInput(f"endpoints must differ from each other, got {list(self.endpoints)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of the agent as a whole: cost, reuse of verdicts, and the files it writes."""

    max_cost_usd: float | None = None
    call_cost_usd: float | None = None
    journal: str | PathLike[str] | None = None
    reuse: Literal["sample", "content", "off"] = "sample"
    replay_failures: bool = True
    store: Literal["full", "hash"] = "full"
    run: str = "default"
    run_dir: str | PathLike[str] | None = None
    incomplete_after_s: float | None = 600.0
    max_waiting_mb: float = 256.0
    close_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        _positive("max_cost_usd", self.max_cost_usd, none_ok=True)
        _positive("call_cost_usd", self.call_cost_usd, none_ok=True)
        _one_of("reuse", self.reuse, ("sample", "content", "off"))
        if not isinstance(self.replay_failures, bool):
            raise InvalidInput(f"replay_failures must be true or false, got {self.replay_failures!r}")
        _one_of("store", self.store, ("full", "hash"))
        _positive("incomplete_after_s", self.incomplete_after_s, none_ok=True)
        _positive("max_waiting_mb", self.max_waiting_mb)
        _positive("close_timeout_s", self.close_timeout_s)
        if not self.run:
            raise InvalidInput("run must be a name, got an empty string")


class LimitOptions(TypedDict, total=False):
    """The keywords of `LimitSettings`, for type checkers and editors; the defaults are in `LimitSettings`."""

    max_concurrency: int | Literal["auto"]
    """calls in flight at once; "auto" finds the number from errors and latency"""
    rpm: float | Literal["auto"] | None
    """requests a minute; "auto" learns them from 429s and headers, None: no limit"""
    tpm: float | Literal["auto"] | None
    """tokens a minute; "auto" learns them from headers, None: no limit"""
    max_refused: float
    """the largest share of calls refused, where rpm="auto" presses a limit without a burst; 0.2: never presses"""
    timeout_s: float | None
    """time for one attempt; None: no limit"""
    verdict_timeout_s: float | None
    """time for all attempts at one rollout together"""
    max_attempts: int
    """attempts that may fail, per rollout; a 429 uses none of them"""
    backoff_s: float
    """the longest wait before the first retry; it doubles with each failure"""
    max_backoff_s: float
    """the largest value that doubling reaches"""
    retry_budget: float
    """retries and hedges together, as a share of first attempts"""
    hedge_quantile: float | None
    """call a second time when slower than this share of calls; None: never"""
    hedge_share: float
    """the most hedges, as a share of all calls"""
    endpoints: Sequence[str]
    """addresses of the service, each with a circuit breaker of its own"""
    outage_share: float | None
    """stop sending when this share of the last outcomes failed; None: never"""
    outage_window: int
    """how many outcomes the circuit breaker looks at"""
    outage_give_up_s: float
    """how long to wait for a service that is down"""
    workers: Literal["thread", "process"]
    """where a plain function runs: in a "thread" or a "process" of its own"""
    processes: int | None
    """how many processes; None: one per CPU"""
    max_abandoned: int
    """threads that may be stuck in a plain function and are replaced"""


class AgentOptions(LimitOptions, total=False):
    """The keywords of `RewardAgent`: those of `AgentSettings` and of `LimitSettings`."""

    max_cost_usd: float | None
    """spend cap of the run; the agent halts before a call that could pass it"""
    call_cost_usd: float | None
    """an upper bound of what one call costs, for the cap"""
    journal: str | PathLike[str] | None
    """the file that keeps paid verdicts, so that none is paid for twice"""
    reuse: Literal["sample", "content", "off"]
    """which saved verdicts are used again: of the same "sample", of the same "content", or "off" for none"""
    replay_failures: bool
    """whether a failure that was delivered before is used again"""
    store: Literal["full", "hash"]
    """what the journal keeps of texts: "full" or "hash" for digests alone"""
    run: str
    """the run's name in the journal"""
    run_dir: str | PathLike[str] | None
    """the directory for events and totals of each step"""
    incomplete_after_s: float | None
    """how long to wait for rollouts of a group that nobody submits"""
    max_waiting_mb: float
    """megabytes of rollouts that one run may have waiting at a shared agent"""
    close_timeout_s: float
    """time that each stage of closing may take"""


AGENT_NAMES = tuple(field.name for field in dataclasses.fields(AgentSettings))
LIMIT_NAMES = tuple(field.name for field in dataclasses.fields(LimitSettings))


def split_options(options: Mapping[str, Any]) -> tuple[AgentSettings, LimitSettings]:
    """Sorts flat keywords into the two records; the error for an unknown keyword suggests the nearest one."""
    check_names(options, (*AGENT_NAMES, *LIMIT_NAMES))
    agent = AgentSettings(**{name: value for name, value in options.items() if name in AGENT_NAMES})
    limits = LimitSettings(**{name: value for name, value in options.items() if name in LIMIT_NAMES})
    return agent, limits


def check_names(options: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known settings: {', '.join(known)}"
            raise InvalidInput(f"there is no setting {name!r}; {hint}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _whole(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidInput(f"{name} must be a whole number of at least {at_least}, got {value!r}")


def _positive(name: str, value: Any, *, none_ok: bool = False) -> None:
    if value is None and none_ok:
        return
    if not _is_number(value) or value <= 0:
        raise InvalidInput(f"{name} must be a positive number{' or None' if none_ok else ''}, got {value!r}")


def _not_negative(name: str, value: Any) -> None:
    if not _is_number(value) or value < 0:
        raise InvalidInput(f"{name} must be a number of at least 0, got {value!r}")


def _share(name: str, value: Any) -> None:
    if value is not None and (not _is_number(value) or not 0 < value <= 1):
        raise InvalidInput(f"{name} must lie in (0, 1], got {value!r}")


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
