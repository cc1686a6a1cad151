"""What users write, as types: the forms a reward may take and the hooks it may have.

Always true: nobody has to inherit from or import anything here; the loader goes by names and signatures, and these
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
    """Scores one response; runs in a thread or a process, so it may block."""

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Score: ...


class AsyncScoreFunction(Protocol):
    """Scores one response on the event loop, so it must await what it waits for."""

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
    """A judge: built once, keeps clients and sessions, scores with a method of any of the forms above."""

    @property
    def compute_score(self) -> Callable[..., Any]: ...


class SupportsScoreGroup(Protocol):
    """Judges responses relative to each other: sees the whole group, returns one result per rollout."""

    def score_group(self, rollouts: Sequence[Rollout], /) -> Sequence[Score] | Awaitable[Sequence[Score]]: ...


class SupportsPostProcess(Protocol):
    """Sees a complete group's scores, failed ones as NaN; a finite value for a failure makes it `imputed`."""

    def post_process_scores(self, scores: list[float], /) -> Sequence[float | None]: ...


class SupportsLog(Protocol):
    """Is told about every submitted batch once, when it is complete; the five lists are aligned."""

    def log(
        self,
        timestamps: list[float],
        queries: list[str | None],
        results: list[Any],
        latencies: list[float],
        group_uids: list[str],
        /,
    ) -> object: ...


class SupportsDecideLocally(Protocol):
    """Gives the verdict that needs no call, or None; it is asked before a call takes a slot, a turn or money.

    It runs in a thread, or on the event loop if the reward says `decides_quickly = True`.
    """

    def decide_locally(self, rollout: Rollout, /) -> Score | None: ...


class SupportsEstimateTokens(Protocol):
    """Says how many tokens a call will use before it is made, for limits on tokens a minute."""

    def estimate_tokens(self, rollout: Rollout, /) -> int: ...


class SupportsClose(Protocol):
    """Lets go of clients and sessions when the agent closes."""

    def close(self) -> object: ...


class SupportsAclose(Protocol):
    """The same for those that must await; preferred where both exist."""

    def aclose(self) -> Awaitable[object]: ...


RewardLike: TypeAlias = str | PathLike[str] | Callable[..., Any] | type[Any] | SupportsComputeScore | SupportsScoreGroup
"""What names or is a reward: `file.py:name`, `package.module:name`, a function, a class or an instance."""
