"""The server's own protocol: the verbs of the Python client, and `/v1/score` for everybody else.

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
from rewardflow.serve.answers import json_answer
from rewardflow.serve.jobs import Forbidden, ServedJob
from rewardflow.serve.plain_records import from_plain, to_json
from rewardflow.serve.repeatable_requests import RepeatableRequests
from rewardflow.shared_agent.messages import (
    MAX_GROUP_SIZE,
    Cancel,
    CancelStarted,
    Op,
    ScoreRequest,
    Seal,
    StillWanted,
    Submit,
)
from rewardflow.shared_agent.service import Service
from rewardflow.types import Reward, Rollout

if TYPE_CHECKING:
    from aiohttp import web

MAX_WAIT_S: Final = 60.0
MAX_ROLLOUTS: Final = 10_000
_MIN_SECRET: Final = 32
_OPS: Final[Mapping[str, type[Op]]] = {
    kind.__name__: kind for kind in (Submit, ScoreRequest, Seal, Cancel, CancelStarted, StillWanted)
}
_WHOLE: Final = ("index", "group_size", "step", "position", "policy_version")
_ROLLOUT_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Rollout))


# -- the verbs of the Python client ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Hello:
    secret: str
    run: str
    share: float = 1.0
    records: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Post:
    secret: str
    ops: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Take:
    secret: str
    confirmed: int


@dataclasses.dataclass(frozen=True, slots=True)
class ScoreBody:
    """The body of `/v1/score`."""

    rollouts: list[dict[str, Any]]
    run: str | None = None
    wait_s: float = 20.0
    due_step: int | None = None


class ClientVerbs:
    """Hello, post, take and bye of clients, as `shared_agent` defines them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def hello(self, body: Hello, job: ServedJob) -> web.Response:
        _check_secret(body.secret)
        share = body.share if job.share is None else job.share
        return json_answer(await self._service.hello(body.secret, job.run, share, body.records))

    async def post(self, body: Post) -> web.Response:
        is_known = await self._service.post(body.secret, [_op(op) for op in body.ops])
        return json_answer(True) if is_known else _forgotten()

    async def take(self, body: Take) -> web.Response:
        delivery = await self._service.take(body.secret, body.confirmed)
        return _forgotten() if delivery is None else json_answer(delivery)

    async def bye(self, body: Take) -> web.Response:
        delivery = await self._service.bye(body.secret, body.confirmed)
        return _forgotten() if delivery is None else json_answer(delivery)

    async def statistics(self, job: ServedJob) -> web.Response:
        if not job.sees_all:
            raise Forbidden("the statistics of all jobs need the server's own token; a job has /v1/spending")
        return json_answer(await self._service.statistics())


def _check_secret(secret: str) -> None:
    if len(secret) < _MIN_SECRET:
        raise InvalidInput(f"secret must have at least {_MIN_SECRET} characters, got {len(secret)}")


def _op(plain: Mapping[str, Any]) -> Op:
    kind = _OPS.get(str(plain.get("op")))
    if kind is None:
        raise InvalidInput(f"op must be one of {', '.join(_OPS)}, got {plain.get('op')!r:.100}")
    return from_plain(kind, plain.get("about"), f"about of {kind.__name__}")


def _forgotten() -> web.Response:
    """The host does not know this client, which must say hello first."""
    return json_answer({"error": {"message": "this client must say hello first", "type": "gone"}}, status=410)


# -- for everybody else ----------------------------------------------------------------------------------------------


async def score(body: ScoreBody, job: ServedJob, requests: RepeatableRequests) -> web.Response:
    """Judges rollouts, and answers with what is final within `wait_s`; the same request again gets the rest."""
    rollouts, futures = await _ask(body, job, requests)
    open_ones = [future for future in futures if not future.done()]
    if open_ones and body.wait_s > 0:
        await asyncio.wait(open_ones, timeout=min(body.wait_s, MAX_WAIT_S))
    verdicts = [
        verdict_json(rollout, future.result())
        for rollout, future in zip(rollouts, futures, strict=True)
        if future.done()
    ]
    pending = [place_json(rollout) for rollout, future in zip(rollouts, futures, strict=True) if not future.done()]
    return json_answer({"verdicts": verdicts, "pending": pending})


async def score_events(body: ScoreBody, job: ServedJob, requests: RepeatableRequests) -> AsyncIterator[bytes]:
    """Yields a server-sent event for each verdict as it becomes final, then `end`; a comment is a sign of life."""
    rollouts, futures = await _ask(body, job, requests)
    waiting: dict[asyncio.Future[Reward], list[Rollout]] = {}
    for rollout, future in zip(rollouts, futures, strict=True):
        waiting.setdefault(future, []).append(rollout)
    while waiting:
        done, _ = await asyncio.wait(waiting, timeout=15.0, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            yield b": waiting\n\n"
        for future in done:
            for rollout in waiting.pop(future):
                yield b"event: verdict\ndata: " + to_json(verdict_json(rollout, future.result())) + b"\n\n"
    yield b"event: end\ndata: {}\n\n"


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
        "components": dict(reward.components),
        "extras": dict(reward.extras),
        "query": reward.query,
        "explanation": reward.explanation,
        "attempts": reward.attempts,
        "latency_s": reward.latency_s,
        "cost_usd": reward.cost_usd,
        "tokens": reward.tokens,
        "cached": reward.cached,
    }
