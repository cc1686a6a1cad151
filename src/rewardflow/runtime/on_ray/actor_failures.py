"""Reports failures of actors to the run: which actor, which error, and where, in the first lines.

Always true: an error of ours travels as it is, any other as text, because exceptions of libraries often cannot be sent;
Ray's own frames and advice are left out.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from rewardflow.errors import RewardflowError

Call = TypeVar("Call", bound=Callable[..., Awaitable[Any]])


class ActorFailed(Exception):
    """An exception of an actor as text: its last line, then its traceback."""

    def __init__(self, summary: str, trace: str) -> None:
        super().__init__(summary, trace)
        self.summary = summary
        self.trace = trace

    @classmethod
    def of(cls, error: BaseException) -> ActorFailed:
        summary = "".join(traceback.format_exception_only(error)).strip()
        own = error.__traceback__ and error.__traceback__.tb_next  # without the frame of the boundary
        return cls(summary, "".join(traceback.format_exception(type(error), error, own)).strip())


class FailureBoundary:
    """The one place that catches what an actor's methods raise. A method that yields enters it itself."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, RewardflowError):
            raise ActorFailed.of(error) from None


def telling(call: Call) -> Call:
    """Wraps a method of an actor in a `FailureBoundary`."""

    @functools.wraps(call)
    async def told(*args: Any, **kwargs: Any) -> Any:
        with FailureBoundary():
            return await call(*args, **kwargs)

    return told  # type: ignore[return-value]  # the same signature
