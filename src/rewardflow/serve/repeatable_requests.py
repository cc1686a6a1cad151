"""Requests of callers that keep no session: whoever lost an answer asks again, and pays nothing.

Always true: a rollout of a run is judged once, whoever asks for it how often: a repeat joins the call in flight or gets
the settled verdict, a failure too. A call goes on when its caller has gone. Verdicts of the kinds `cancelled`, `budget`
and `outage` settle nothing, nor do failures without an attempt (another rollout of the run was at this place): nobody
has judged, so a repeat asks again. Settled verdicts are kept up to a limit of bytes; the journal knows the older ones.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.canonical import canonical
from rewardflow.reward.journal.verdict_keys import verdict_keys
from rewardflow.serve.settings import ServedJob
from rewardflow.shared_agent.host import Host
from rewardflow.shared_agent.service import Service
from rewardflow.types import UNDECIDED_KINDS, Reward, Rollout

_MAX_SETTLED_BYTES: Final = 64 * 2**20
_BYTES_A_VERDICT: Final = 600  # of the records themselves
_Key = bytes


class RepeatableRequests:
    """All requests without a session, by run, place and inputs."""

    def __init__(
        self, service: Service, *, keeps_failures: bool = True, max_settled_bytes: int = _MAX_SETTLED_BYTES
    ) -> None:
        """`keeps_failures=False`: a failure settles nothing, and a repeat asks again."""
        self._service = service
        self._keeps_failures = keeps_failures
        self._in_flight: dict[_Key, asyncio.Future[Reward]] = {}
        self._settled = SettledVerdicts(max_settled_bytes)

    async def require_single_rollouts(self) -> None:
        """Raises `InvalidInput` if verdicts depend on whole groups, which requests without groups cannot give."""
        if (await self._service.open_host()).needs_groups:
            raise InvalidInput(
                "this reward judges whole groups, and requests of this protocol have none: use /v1/score or the client"
            )

    async def ask(
        self, job: ServedJob, rollouts: Sequence[Rollout], *, due_step: int | None = None, is_batch: bool = False
    ) -> list[asyncio.Future[Reward]]:
        """Returns a future for each rollout; do not cancel it, because others may wait for it, too.

        Raises `RunFull`, and asks for none, if the job has too many rollouts waiting. `is_batch`: they belong to no
        step.
        """
        host = await self._service.open_host()
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Reward]] = []
        fresh: dict[_Key, tuple[Rollout, asyncio.Future[Reward]]] = {}
        for rollout in rollouts:
            key = verdict_keys("", (rollout,), run=job.run)[0]
            future = self._in_flight.get(key)
            if future is None and key in fresh:
                future = fresh[key][1]
            if future is None:
                future = loop.create_future()
                if (reward := self._settled.get(key)) is not None:
                    future.set_result(reward)
                else:
                    fresh[key] = rollout, future
            futures.append(future)
        if fresh:
            self._begin(host, job, fresh, due_step, is_batch)
        return futures

    def _begin(
        self,
        host: Host,
        job: ServedJob,
        fresh: dict[_Key, tuple[Rollout, asyncio.Future[Reward]]],
        due_step: int | None,
        is_batch: bool,
    ) -> None:
        share = job.share if job.share is not None else host.share_of(job.run) or 1.0
        self._in_flight.update({key: future for key, (_, future) in fresh.items()})
        asked = [(rollout, functools.partial(self._land, key)) for key, (rollout, _) in fresh.items()]
        try:
            host.ask(job.run, asked, share=share, due_step=due_step, is_batch=is_batch)
        except BaseException:
            for key in fresh:
                self._in_flight.pop(key, None)
            raise

    def _land(self, key: _Key, reward: Reward) -> None:
        future = self._in_flight.pop(key, None)
        if future is None:
            return
        if _is_settled(reward) and (reward.value is not None or self._keeps_failures):
            self._settled.put(key, reward)
        if not future.done():
            future.set_result(reward)


def _is_settled(reward: Reward) -> bool:
    return reward.value is not None or (reward.kind not in UNDECIDED_KINDS and (reward.attempts > 0 or reward.cached))


class SettledVerdicts:
    """The latest verdicts, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._verdicts: OrderedDict[_Key, tuple[Reward, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._verdicts)

    def get(self, key: _Key) -> Reward | None:
        known = self._verdicts.get(key)
        if known is None:
            return None
        self._verdicts.move_to_end(key)
        return known[0]

    def put(self, key: _Key, reward: Reward) -> None:
        if key in self._verdicts:
            return
        texts = (reward.query, reward.explanation, reward.error, reward.traceback)
        size = _BYTES_A_VERDICT + sum(len(text) for text in texts if text)
        if reward.extras:
            size += len(canonical(reward.extras))
        self._verdicts[key] = reward, size
        self._num_bytes += size
        while self._num_bytes > self._max_bytes:
            _, (_, oldest) = self._verdicts.popitem(last=False)
            self._num_bytes -= oldest
