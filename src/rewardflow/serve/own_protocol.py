"""The server's own protocol: the Python client's messages as JSON, and `/v1/score` for everybody else.

Always true: asking twice is safe. A client's messages have numbers, and `/v1/score` knows a rollout by run, step, group
and index, so that a caller who lost an answer sends the same request again and pays nothing. `/v1/score` answers
within `wait_s` with the verdicts that are final and a list of those that are not, or streams them as they come.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rewardflow.errors import InvalidInput
from rewardflow.serve.http_json import from_plain, json_answer, to_json
from rewardflow.serve.repeatable_requests import RepeatableRequests
from rewardflow.serve.settings import ServedJob
from rewardflow.shared_agent.messages import (
    MAX_GROUP_SIZE,
    AskStatistics,
    Bye,
    Cancel,
    CancelStarted,
    Hello,
    Message,
    Op,
    Post,
    ScoreRequest,
    Seal,
    StillWanted,
    Submit,
    Take,
)
from rewardflow.types import EMPTY, Reward, Rollout

if TYPE_CHECKING:
    from aiohttp import web

MAX_WAIT_S: Final = 60.0
MAX_ROLLOUTS: Final = 10_000
_MIN_SECRET: Final = 32
_SIGN_OF_LIFE_S: Final = 15.0
_OPS: Final[Mapping[str, type[Op]]] = {
    kind.__name__: kind for kind in (Submit, ScoreRequest, Seal, Cancel, CancelStarted, StillWanted)
}
_WHOLE: Final = ("index", "group_size", "step", "position", "policy_version")
_ROLLOUT_FIELDS: Final = {field.name: None for field in dataclasses.fields(Rollout)}  # an ordered set
_NOTHING: Final[Mapping[str, Any]] = {}


# -- the messages of the Python client -------------------------------------------------------------------------------

MESSAGES: Final[Mapping[str, type[Message[Any]]]] = {"hello": Hello, "post": Post, "take": Take, "bye": Bye}


@dataclasses.dataclass(frozen=True, slots=True)
class _PlainPost:
    secret: str
    ops: list[dict[str, Any]]


def verb_of(message: Message[Any]) -> str:
    """Returns the last part of the path that the message is sent to."""
    return "statistics" if isinstance(message, AskStatistics) else type(message).__name__.lower()


def message_json(message: Message[Any]) -> bytes:
    if not isinstance(message, Post):
        return to_json(message)
    ops = [{"op": type(op).__name__, "about": op} for op in message.ops]
    return to_json({"secret": message.secret, "ops": ops})


def message_of(verb: str, plain: Any) -> Message[Any]:
    """Makes a client's message of its JSON, as `message_json` wrote it."""
    if verb == "post":
        post = from_plain(_PlainPost, plain)
        return Post(post.secret, [_op(op) for op in post.ops])
    return from_plain(MESSAGES[verb], plain)


def hello_of_job(message: Hello, job: ServedJob) -> Hello:
    """Returns the hello under the name and with the share that the job has."""
    if len(message.secret) < _MIN_SECRET:
        raise InvalidInput(f"secret must have at least {_MIN_SECRET} characters, got {len(message.secret)}")
    return dataclasses.replace(message, run=job.run, share=message.share if job.share is None else job.share)


def _op(plain: Mapping[str, Any]) -> Op:
    kind = _OPS.get(str(plain.get("op")))
    if kind is None:
        raise InvalidInput(f"op must be one of {', '.join(_OPS)}, got {plain.get('op')!r:.100}")
    return from_plain(kind, plain.get("about"), f"about of {kind.__name__}")


# -- for everybody else ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ScoreBody:
    """The body of `/v1/score`."""

    rollouts: list[dict[str, Any]]
    run: str | None = None
    wait_s: float = 20.0
    due_step: int | None = None


async def score(body: ScoreBody, job: ServedJob, requests: RepeatableRequests) -> web.Response:
    """Judges rollouts, and answers with what is final within `wait_s`; the same request again gets the rest."""
    rollouts, futures = await _ask(body, job, requests)
    await _wait_for_all(futures, min(body.wait_s, MAX_WAIT_S))
    verdicts = [
        verdict_json(rollout, future.result())
        for rollout, future in zip(rollouts, futures, strict=True)
        if future.done()
    ]
    pending = [place_json(rollout) for rollout, future in zip(rollouts, futures, strict=True) if not future.done()]
    return json_answer({"verdicts": verdicts, "pending": pending})


async def _wait_for_all(futures: Sequence[asyncio.Future[Reward]], timeout_s: float) -> None:
    """Waits until all are done or the time is over; waits for the last first, after which most others are done, too."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    for future in reversed(futures):
        if not future.done() and (left_s := until_s - loop.time()) > 0:
            await asyncio.wait((future,), timeout=left_s)


async def score_events(body: ScoreBody, job: ServedJob, requests: RepeatableRequests) -> AsyncIterator[bytes]:
    """Yields a server-sent event for each verdict as it becomes final, then `end`; a comment is a sign of life."""
    rollouts, futures = await _ask(body, job, requests)
    waiting: dict[asyncio.Future[Reward], list[Rollout]] = {}
    for rollout, future in zip(rollouts, futures, strict=True):
        waiting.setdefault(future, []).append(rollout)
    ready: asyncio.Queue[asyncio.Future[Reward]] = asyncio.Queue()
    for future in waiting:  # once each: asyncio.wait would go through all that are left for each that is done
        future.add_done_callback(ready.put_nowait)
    try:
        while waiting:
            try:
                async with asyncio.timeout(_SIGN_OF_LIFE_S):
                    future = await ready.get()
            except TimeoutError:
                yield b": waiting\n\n"
                continue
            for rollout in waiting.pop(future):
                yield b"event: verdict\ndata: " + to_json(verdict_json(rollout, future.result())) + b"\n\n"
        yield b"event: end\ndata: {}\n\n"
    finally:
        for future in waiting:
            future.remove_done_callback(ready.put_nowait)


async def _ask(
    body: ScoreBody, job: ServedJob, requests: RepeatableRequests
) -> tuple[Sequence[Rollout], Sequence[asyncio.Future[Reward]]]:
    if not 0 < len(body.rollouts) <= MAX_ROLLOUTS:
        raise InvalidInput(f"rollouts must be 1 to {MAX_ROLLOUTS:,}, got {len(body.rollouts):,}")
    rollouts = [rollout_of(plain, f"rollouts[{i}]") for i, plain in enumerate(body.rollouts)]
    return rollouts, await requests.ask(job, rollouts, due_step=body.due_step)


def rollout_of(plain: Mapping[str, Any], where: str) -> Rollout:
    """Makes a rollout of an object with the names of `Rollout`."""
    for name in plain:
        if name not in _ROLLOUT_FIELDS:
            raise InvalidInput(f"{where} takes {', '.join(_ROLLOUT_FIELDS)}, got {name!r:.100}")
    for name in ("group_id", "response"):
        if name not in plain:
            raise InvalidInput(f"{where} must have {name!r}")
    for name in _WHOLE:
        if isinstance(plain.get(name), bool):
            raise InvalidInput(f"{where}.{name} must be a whole number, got {plain[name]}")
    messages = plain.get("messages", [])
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise InvalidInput(f"{where}.messages must be a list of objects, got {messages!r:.100}")
    rollout = Rollout(**plain)
    if rollout.group_size > MAX_GROUP_SIZE:
        raise InvalidInput(f"{where}.group_size must be at most {MAX_GROUP_SIZE:,}, got {rollout.group_size:,}")
    return rollout


def place_json(rollout: Rollout) -> dict[str, Any]:
    return {"step": rollout.step, "group_id": rollout.group_id, "index": rollout.index}


def verdict_json(rollout: Rollout, reward: Reward) -> dict[str, Any]:
    """Returns the verdict as an object: `status` is scored or failed, and a failed one has no value but a kind."""
    return {
        **place_json(rollout),
        "status": reward.status,
        "value": reward.value,
        "kind": reward.kind,
        "error": reward.error,
        "imputed": reward.imputed,
        "components": _NOTHING if reward.components is EMPTY else dict(reward.components),
        "extras": _NOTHING if reward.extras is EMPTY else dict(reward.extras),
        "query": reward.query,
        "explanation": reward.explanation,
        "attempts": reward.attempts,
        "latency_s": reward.latency_s,
        "cost_usd": reward.cost_usd,
        "tokens": reward.tokens,
        "cached": reward.cached,
        "traceback": reward.traceback,
    }
