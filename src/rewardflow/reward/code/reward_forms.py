"""Defines, as types, the forms that a user's reward may take and the hooks it may have.

Always true: a reward need not inherit or import anything from here; the loader looks at names and signatures, and these
protocols say the same to type checkers and readers. A reward may ask for fewer parameters than its form shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, TypeAlias

from rewardflow.types import Reward, Rollout

Score: TypeAlias = float | tuple[Any, ...] | list[Any] | Mapping[str, Any] | Reward
"""One result: a number, `(score, query, explanation)`, a mapping with `score` and any extras, or a `Reward`."""


class ScoreFunction(Protocol):
    """Scores one response; it runs in a thread or a process, so it may block."""

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Score: ...


class AsyncScoreFunction(Protocol):
    """Scores one response; it runs on the event loop, so it must not block."""

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Awaitable[Score]: ...


class BatchScoreFunction(Protocol):
    """Scores all responses to one prompt in one call; returns one result for each, in order."""

    def __call__(
        self,
        data_sources: list[str],
        solution_strs: list[str],
        ground_truths: list[Any],
        extra_infos: list[dict[str, Any]],
    ) -> Sequence[Score] | Awaitable[Sequence[Score]]: ...


class SupportsComputeScore(Protocol):
    """An object that is built once, may keep clients and sessions, and scores with a method of a form above."""

    @property
    def compute_score(self) -> Callable[..., Any]: ...


class SupportsScoreGroup(Protocol):
    """Scores responses relative to each other: it gets the whole group and returns one result per rollout."""

    def score_group(self, rollouts: Sequence[Rollout], /) -> Sequence[Score] | Awaitable[Sequence[Score]]: ...


class SupportsPostProcess(Protocol):
    """Changes a complete group's scores; failed ones are NaN, and a finite value in their place is `imputed`."""

    def post_process_scores(self, scores: list[float], /) -> Sequence[float | None]: ...


class SupportsLog(Protocol):
    """Logs every submitted batch once, when it is complete; the five lists are aligned.

    Timestamps are ISO 8601, in local time; a result is the explanation that the reward returned, or the error.
    """

    def log(
        self,
        timestamps: list[str],
        queries: list[str | None],
        results: list[str | None],
        latencies: list[float],
        group_uids: list[str],
        /,
    ) -> object: ...


class SupportsLogVerdicts(Protocol):
    """Logs every submitted batch once, when it is complete: a dict for each rollout, with all that is known of it."""

    def log_verdicts(self, verdicts: list[dict[str, Any]], /) -> object: ...


class SupportsDecideLocally(Protocol):
    """Returns a verdict that needs no call, or None; it runs before a call takes a slot, a turn or money.

    It runs in a thread, or on the event loop if the reward says `decides_quickly = True`.
    """

    def decide_locally(self, rollout: Rollout, /) -> Score | None: ...


class SupportsEstimateTokens(Protocol):
    """Estimates how many tokens a call will use, for limits on tokens a minute."""

    def estimate_tokens(self, rollout: Rollout, /) -> int: ...


class SupportsCostBound(Protocol):
    """Tells the most that a call about this rollout can cost, or None if it is not known; 0 if it is free.

    The agent reserves this much of `max_cost_usd` for each call. For a group, it adds up the bounds of its rollouts.
    """

    def cost_bound_usd(self, rollout: Rollout, /) -> float | None: ...


class SupportsClose(Protocol):
    """Closes clients and sessions when the agent closes."""

    def close(self) -> object: ...


class SupportsAclose(Protocol):
    """Does the same for rewards that must await; preferred where both exist."""

    def aclose(self) -> Awaitable[object]: ...


RewardLike: TypeAlias = str | PathLike[str] | Callable[..., Any] | type[Any] | SupportsComputeScore | SupportsScoreGroup
"""A reward or its name: `file.py:name`, `package.module:name`, a function, a class or an instance."""
