"""Calls several actors that do the same work, all at once, and waits for all of them.

Always true: a call returns when all actors have answered, or raises when one has failed, with the cause: of an actor
that died and of those that lost their partner by it, the one that died is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from rewardflow.errors import ClusterError, RewardflowError
from rewardflow.runtime.on_ray.actor_failures import ActorFailed

_SHOWN_CHARS = 300
_CAUSE_S = 5.0  # how long to wait, after a failure, for one that may have caused it

_MAY_BE_AN_EFFECT = 2  # the importance of an error that the death of a partner causes, too

ArgumentsOf = Callable[[int], tuple[Any, ...]]


class ActorGroup:
    """The actors of one kind. `kind` is their name in messages; `places` are filled in as they become known."""

    def __init__(self, kind: str, actors: Sequence[Any]) -> None:
        self.kind = kind
        self.actors = tuple(actors)
        self.places = [""] * len(self.actors)

    def __len__(self) -> int:
        return len(self.actors)

    async def all(self, method: str, arguments_of: ArgumentsOf = lambda _: ()) -> list[Any]:
        """Returns the answers of all actors, in order."""
        return await self.answered(self.ask(method, arguments_of))

    def ask(self, method: str, arguments_of: ArgumentsOf = lambda _: (), *, num_returns: int = 1) -> list[Any]:
        """Returns Ray's references to the answers; `num_returns` for each if an answer has several parts."""
        calls = [getattr(actor, method).options(num_returns=num_returns) for actor in self.actors]
        return [call.remote(*arguments_of(i)) for i, call in enumerate(calls)]

    async def answered(self, answers: Sequence[Any]) -> list[Any]:
        futures = [asyncio.wrap_future(answer.future()) for answer in answers]
        for future in futures:
            future.add_done_callback(
                _failure
            )  # marks late errors as seen: after the first error nobody waits for the others
        _, out = await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
        if not out and not any(_failure(future) for future in futures):
            return [future.result() for future in futures]
        if out and not any(_explains(future) for future in futures):
            await asyncio.wait(out, timeout=_CAUSE_S)
        failures = [(i, error) for i, future in enumerate(futures) if (error := _failure(future)) is not None]
        raise self.told(*min(failures, key=lambda failure: _importance(failure[1])))

    async def stream(self, number: int, method: str, *arguments: Any) -> AsyncGenerator[Any]:
        """Yields what one actor yields. Close it to stop the actor's work on it."""
        import ray

        call = getattr(self.actors[number], method).options(num_returns="streaming")
        answers = call.remote(*arguments)
        try:
            async for answer in answers:
                yield await answer
        except Exception as error:
            raise self.told(number, error) from None
        except BaseException:  # the caller stopped iterating
            ray.cancel(answers)
            raise

    def wait_for(self, answers: Sequence[Any]) -> None:
        """As `answered`, for a thread that may block."""
        import ray

        for number, answer in enumerate(answers):
            try:
                ray.get(answer)
            except Exception as error:
                raise self.told(number, error) from None

    def told(self, number: int, error: BaseException) -> BaseException:
        """Returns the error to raise for an exception of an actor's call."""
        from ray.exceptions import RayError, RayTaskError

        who = f"{self.kind} {number} of {len(self)}{self.places[number]}"
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, RewardflowError):
            return cause
        if isinstance(cause, ActorFailed):
            return ClusterError(f"{who} failed: {cause.summary}\n{cause.trace}")
        if isinstance(error, RayTaskError):
            return ClusterError(f"{who} failed: {_shortened(cause)}")
        if isinstance(error, RayError):
            return ClusterError(
                f"{who} went away: {_shortened(error)} The run cannot go on without it; with a run_dir, --resume goes "
                "on from the last checkpoint, also with another number of ranks (runtime.ranks)"
            )
        return error

    def kill(self) -> None:
        import ray

        for actor in self.actors:
            ray.kill(actor)


def _failure(future: asyncio.Future[Any]) -> BaseException | None:
    return future.exception() if future.done() and not future.cancelled() else None


def _explains(future: asyncio.Future[Any]) -> bool:
    """Whether the actor failed by itself, so that no other failure can be the cause."""
    error = _failure(future)
    return error is not None and _importance(error) < _MAY_BE_AN_EFFECT


def _importance(error: BaseException) -> int:
    from ray.exceptions import RayTaskError

    if not isinstance(error, RayTaskError):
        return 0  # the actor itself is gone
    return 1 if isinstance(error.cause, RewardflowError) else _MAY_BE_AN_EFFECT


def _shortened(error: BaseException | None) -> str:
    """Removes Ray's advice from a message."""
    lines: Iterator[str] = (line.strip() for line in str(error).splitlines())
    first = next((line for line in lines if line), type(error).__name__)
    return first[:_SHOWN_CHARS] if first.endswith(".") else f"{first[:_SHOWN_CHARS]}."
