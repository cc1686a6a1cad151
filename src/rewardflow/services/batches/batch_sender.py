"""Sends a batch, waits for its end and collects its outcomes. A kill may end this anywhere, so it may begin anywhere.

Always true: a batch is in the store before it is sent, and it is sent again only if the service said that it does not
have it. One call at a time drives a batch; if that call is cancelled, the next one goes on from where it was. Results
that cannot be read are read again for a day, and what is still unread then fails without being sent again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

from rewardflow.clock import hold
from rewardflow.errors import CallError, RateLimited, ServiceError
from rewardflow.reward.calls.faults import fault_of
from rewardflow.services.batches.batch_api import BatchApi, BatchProgress, Outcome, SentBatch, Undecided
from rewardflow.services.batches.batch_store import BatchStore, StoredBatch, StoredRequest
from rewardflow.services.batches.settings import BatchSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_REQUEST_S = 600.0  # for one HTTP request: an upload may be large
_POLL_SHARE = 0.1  # of the time that a batch has taken, so that polling delays its end by a tenth at most
_LONGEST_POLL_S = 300.0
_POLLS_TO_APPEAR = 12  # a batch that is not listed after this many polls was not created
_REFUSED_S = 600.0  # for so long a batch that the service refuses for now is offered again
_READING_S = 24 * 3600.0  # for so long results that cannot be read are read again; services keep them for weeks
_CHUNK = 500


class NotCreated(Exception):
    """The service does not have a batch of an earlier session, whose requests nobody has at hand."""


class Batch:
    """One batch: gathered in this session, or sent by an earlier one.

    `made_s` is the Unix time at which it was sent, or None if it was not; then the service cannot have it.
    """

    def __init__(self, key: str, endpoint: str, *, made_s: float | None = None, batch_id: str | None = None) -> None:
        self.key = key
        self.endpoint = endpoint
        self.id = batch_id
        self.made_s = made_s
        self.began_s = asyncio.get_running_loop().time()
        self.requests: dict[str, StoredRequest] = {}
        self.parts: dict[str, bytes] = {}  # of the requests, unless an earlier session sent them
        self.num_bytes = 0
        self.is_gathering = made_s is None
        self.is_full = asyncio.Event()
        self.is_over = False
        self.outcomes: dict[str, Outcome] = {}
        self.lock = asyncio.Lock()

    @classmethod
    def from_store(cls, stored: StoredBatch) -> Batch:
        batch = cls(stored.key, stored.endpoint, made_s=stored.made_s, batch_id=stored.id)
        batch.began_s -= max(0.0, time.time() - stored.made_s)
        batch.requests = {one.key: one for one in stored.requests}
        batch.is_over = stored.is_over
        return batch

    def add(self, request: StoredRequest, part: bytes) -> None:
        if not self.requests:  # also if others were taken back
            self.began_s = asyncio.get_running_loop().time()
        self.requests[request.key] = request
        self.parts[request.key] = part
        self.num_bytes += len(part) + 1  # with what separates it from the next one

    def remove(self, key: str) -> None:
        """Takes back a request that was not sent yet."""
        del self.requests[key]
        self.num_bytes -= len(self.parts.pop(key)) + 1

    @property
    def elapsed_s(self) -> float:
        """The seconds since it was sent, or since its first request was gathered."""
        return asyncio.get_running_loop().time() - self.began_s


class BatchSender:
    """Brings the batches of one address to their end."""

    def __init__(
        self, api: BatchApi, store: BatchStore, settings: BatchSettings, known_ids: Callable[[], frozenset[str]]
    ) -> None:
        self._api = api
        self._store = store
        self._settings = settings
        self._known_ids = known_ids

    async def finish(self, batch: Batch) -> None:
        """Fills `outcomes` with an answer or an error for each request; with none if the batch was not created."""
        try:
            if batch.id is None:
                await self._create(batch)
            await self._collect(batch, await self._wait_for_end(batch))
        except CallError as error:
            await self._fail(batch, error)
        except NotCreated:
            await in_thread(self._store.forget_batch, batch.key)
        except sqlite3.Error as error:  # a full disk: what is at the service stays there, for a later session
            lost = ServiceError(f"the file of batches cannot be written: {error}", retryable=False)
            batch.outcomes = dict.fromkeys(batch.requests, lost)
        batch.is_over = True

    async def cancel(self, batch: Batch) -> None:
        if batch.id is not None:
            await _in_time(self._api.cancel(batch.id))

    # -- sending --

    async def _create(self, batch: Batch) -> None:
        """Creates the batch, or finds it. Raises the error of all its requests if neither is possible."""
        loop = asyncio.get_running_loop()
        first_s, wait_s = loop.time(), self._settings.poll_s
        while batch.id is None:
            try:
                if batch.made_s is None:
                    await self._send(batch)
                elif not await self._find(batch, batch.made_s):
                    if not batch.parts:
                        raise NotCreated
                    batch.made_s = None
            except CallError as error:
                fault = fault_of(error)
                if fault.is_free or _is_refusal(error):
                    batch.made_s = None
                is_late = loop.time() - first_s >= _REFUSED_S
                if not fault.is_retryable or (batch.made_s is None and is_late):
                    raise
                logger.warning("a batch could not be sent yet, and is sent again: %s", fault.message)
                await asyncio.sleep(max(wait_s, fault.retry_after_s or 0.0))
                wait_s = min(2 * wait_s, _LONGEST_POLL_S)

    async def _send(self, batch: Batch) -> None:
        """Sends the batch. Until the service has said no, it may have it, also if this is cancelled."""
        made_s = time.time()
        await in_thread(self._store.begin, batch.key, batch.endpoint, made_s, list(batch.requests.values()))
        batch.made_s, batch.began_s = made_s, asyncio.get_running_loop().time()
        batch_id = await _in_time(self._api.create(batch.key, [batch.parts[key] for key in batch.requests]))
        await self._created(batch, batch_id)

    async def _find(self, batch: Batch, made_s: float) -> bool:
        """Looks for the batch until it is found or the service has had time to list it; returns whether it was."""
        while True:
            sent = SentBatch(batch.key, frozenset(batch.requests), made_s, self._known_ids())
            try:
                found = await _in_time(self._api.find(sent))
            except Undecided:
                await asyncio.sleep(self._poll_wait_s(batch))
                continue
            if found is not None:
                await self._created(batch, found)
                return True
            if batch.elapsed_s >= _POLLS_TO_APPEAR * self._settings.poll_s:
                return False
            await asyncio.sleep(self._settings.poll_s)

    async def _created(self, batch: Batch, batch_id: str) -> None:
        batch.id = batch_id
        await in_thread(self._store.created, batch.key, batch_id)
        logger.info("batch %s: %d requests are at the service", batch_id, len(batch.requests))

    # -- waiting and collecting --

    async def _wait_for_end(self, batch: Batch) -> BatchProgress:
        """Polls, less and less often. A service that cannot be reached is asked again: the batch is safe there."""
        assert batch.id is not None
        while True:
            try:
                progress = await _in_time(self._api.progress(batch.id))
            except CallError as error:
                if not fault_of(error).is_retryable:
                    raise
                logger.warning("batch %s: cannot tell how far it is: %s", batch.id, fault_of(error).message)
            else:
                if progress.is_over:
                    return progress
            await asyncio.sleep(self._poll_wait_s(batch))

    def _poll_wait_s(self, batch: Batch) -> float:
        return max(self._settings.poll_s, min(_POLL_SHARE * batch.elapsed_s, _LONGEST_POLL_S))

    async def _collect(self, batch: Batch, progress: BatchProgress) -> None:
        """Reads all results, into the store first. Begins again if the service breaks off, less and less often."""
        loop = asyncio.get_running_loop()
        first_s, wait_s = loop.time(), self._settings.poll_s
        while True:
            try:
                await self._read(batch, progress)
                break
            except CallError as error:
                fault = fault_of(error)
                if not fault.is_retryable:
                    raise
                if loop.time() - first_s >= _READING_S:
                    raise _unreadable(batch, fault.message) from error
                logger.warning("batch %s: its results are read again: %s", batch.id, fault.message)
                await asyncio.sleep(max(wait_s, min(fault.retry_after_s or 0.0, _LONGEST_POLL_S)))
                wait_s = min(2 * wait_s, max(wait_s, _LONGEST_POLL_S))
        missing = progress.problem or ServiceError(f"the batch {batch.id} ended without a result for this request")
        for key in batch.requests:
            batch.outcomes.setdefault(key, missing)
        await in_thread(self._store.end, batch.key)

    async def _read(self, batch: Batch, progress: BatchProgress) -> None:
        """Reads the results, whatever their order. Of several about one request the first answer counts."""
        chunk: dict[str, Outcome] = {}
        results = self._api.results(progress)
        try:
            async for key, outcome in results:
                known = chunk.get(key, batch.outcomes.get(key))
                if key in batch.requests and (known is None or isinstance(known, CallError)):
                    chunk[key] = outcome
                if len(chunk) >= _CHUNK:
                    await self._keep(batch, chunk)
                    chunk = {}
        finally:
            await results.aclose()
            await self._keep(batch, chunk)

    async def _keep(self, batch: Batch, chunk: dict[str, Outcome]) -> None:
        await in_thread(self._store.collect, list(chunk.items()))
        batch.outcomes.update(chunk)

    async def _fail(self, batch: Batch, error: CallError) -> None:
        """Gives all requests this error. A batch that was created stays in the store, for a later session."""
        if batch.made_s is None:
            await in_thread(self._store.forget_batch, batch.key)
        for key in batch.requests:
            batch.outcomes.setdefault(key, error)


def _unreadable(batch: Batch, why: str) -> ServiceError:
    """Returns the error of requests that were answered and paid for: another attempt would pay for them again."""
    hours = _READING_S / 3600
    return ServiceError(
        f"the results of batch {batch.id} could not be read for {hours:g} hours, and stay at the service: {why}",
        retryable=False,
    )


def _is_refusal(error: CallError) -> bool:
    """Whether the service said that it did not create the batch."""
    status = getattr(error, "status", None)
    return isinstance(error, RateLimited) or (isinstance(status, int) and 400 <= status < 500 and status != 408)


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_REQUEST_S):
            return await answer
    except TimeoutError:
        raise ServiceError(f"the batch endpoint did not answer within {_REQUEST_S:g} s") from None


async def in_thread(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Runs a function of the store off the loop; a virtual clock waits for it."""
    with hold(asyncio.get_running_loop()):
        return await asyncio.to_thread(function, *arguments)
