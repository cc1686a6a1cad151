"""Turns single requests into batches: a request joins the batch that gathers now, and waits until its batch is over.

Always true: a request that an earlier session sent, for the same call and with the same content, is not sent again: it
waits for that batch, or gets the answer that the store holds. A request whose call was cancelled before its batch was
sent is not sent; if the batch is at the service by then, the call's next attempt waits for the same request. There are
no tasks of its own: one of the calls that wait for a batch drives it.

A request is known by its content, the rollouts that it is about, the number of the attempt, and how many equal ones the
same call has made; so a retry after an answer asks anew, and a repeated run finds each of the requests of the killed
one. A repeat begins with the first attempt. If that one expired in the killed run, it takes what a later attempt there
has sent.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import secrets
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.errors import CallError, InvalidInput
from rewardflow.observe.redact import hide_secrets
from rewardflow.reward.code.current_call import current_call, outside_call
from rewardflow.reward.journal.canonical import canonical
from rewardflow.reward.journal.verdict_keys import verdict_keys
from rewardflow.services.batches.batch_api import BatchApi, Outcome
from rewardflow.services.batches.batch_sender import Batch, BatchSender, in_thread
from rewardflow.services.batches.batch_store import BatchStore, StoredRequest
from rewardflow.services.batches.settings import BatchSettings
from rewardflow.types import Rollout

logger = logging.getLogger(__name__)

_SUFFIX = ".batches"
_MAX_ATTEMPTS = 32  # of an earlier session, among which a request is looked for


class BatchClient:
    """Sends the requests of one judge in batches. `make_api` returns the endpoint of an address."""

    def __init__(self, settings: BatchSettings, make_api: Callable[[str], BatchApi]) -> None:
        self._settings = settings
        self._make_api = make_api
        self._session: _Session | None = None
        self._found: _Kept | None = None
        self._is_all_saved = False

    @property
    def usual_limits(self) -> Mapping[str, Any]:
        return self._settings.usual_limits

    def resume(self, journal: Path, scope: str) -> None:
        """Opens the file beside the journal, and finds what earlier sessions have sent and not got back."""
        path = journal.with_name(journal.name + _SUFFIX)
        self._found = _Kept(BatchStore(path, scope))

    def all_saved(self) -> None:
        """Lets `aclose` forget the answers of this session: their verdicts are in the journal."""
        self._is_all_saved = True

    def reserved_before_usd(self, rollouts: Sequence[Rollout]) -> float:
        """Returns what an earlier session set aside for requests of the same call that are still at the service."""
        return 0.0 if self._found is None else self._found.reserved_usd.get(_place_of(rollouts), 0.0)

    async def send(self, endpoint: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the answer to one request, when its batch is over. Raises what went wrong as a `CallError`."""
        session = self._of_running_loop()
        session.learn_address(endpoint)
        asked = session.request_of(payload)
        request = asked.stored
        outcome: Outcome | None = None
        while outcome is None:
            outcome = session.answer_before(request.key)
            if outcome is None:
                batch = session.batch_with(request.key) or session.gather(endpoint, request, payload)
                outcome = await session.outcome_in(batch, asked)
        if isinstance(outcome, CallError):
            raise copy.copy(outcome)  # all requests of a batch may share it, and each raise adds to its traceback
        session.delivered.add(request.key)
        return outcome

    async def aclose(self) -> None:
        """Ends the session: cancels batches that are still out, if the settings say so, and forgets what was delivered.

        The agent closes its rewards after the journal. If that did not save every verdict, the answers stay for the
        next session, which must not pay for them again.
        """
        session, self._session = self._session, None
        kept, self._found = self._found, None
        forgets, self._is_all_saved = self._is_all_saved, False
        if session is not None:
            await session.aclose(cancels=self._settings.when_interrupted == "cancel", forgets=forgets)
        elif kept is not None:
            kept.store.close()

    def _of_running_loop(self) -> _Session:
        loop = asyncio.get_running_loop()
        if self._session is None:
            if self._found is None:
                logger.warning(
                    "without a journal, requests in batches that are out when the run ends are paid for in vain"
                )
                self._found = _Kept(BatchStore(None, ""))
            self._session = _Session(loop, self._found, self._settings, self._make_api)
        if self._session.loop is not loop:
            raise InvalidInput("a judge with batches serves one event loop at a time, got a second one; close it first")
        return self._session


class _Kept:
    """The store, and what earlier sessions left in it."""

    def __init__(self, store: BatchStore) -> None:
        self.store = store
        self.batches = store.load()
        self.reserved_usd: defaultdict[str, float] = defaultdict(float)  # by the place of a call
        for batch in self.batches:
            for request in batch.requests if not batch.is_over else ():
                self.reserved_usd[request.place] += request.reserved_usd


@dataclass(frozen=True, slots=True)
class _Request:
    """A request of a call. `about` is the same for all equal requests about the same rollouts, whatever the attempt."""

    stored: StoredRequest
    about: bytes


class _Session:
    """The batches of one event loop, from the first request until `aclose`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kept: _Kept,
        settings: BatchSettings,
        make_api: Callable[[str], BatchApi],
    ) -> None:
        self.loop = loop
        self.delivered: set[str] = set()
        self._store = kept.store
        self._settings = settings
        self._make_api = make_api
        self._apis: dict[str, BatchApi] = {}
        self._addresses: dict[str, str] = {}  # with their passwords, by what the store has of them
        self._uses: Counter[bytes] = Counter()
        self._left: defaultdict[bytes, deque[str]] = defaultdict(deque)  # keys at the service that no call waits for
        self._has_told_of_timeouts = False
        self._gathering: dict[str, Batch] = {}  # by address
        self._batches: dict[str, Batch] = {}  # by the key of a request
        for stored in kept.batches:
            batch = Batch.from_store(stored)
            self._batches.update(dict.fromkeys(batch.requests, batch))
        self._found = frozenset(self._batches)  # the requests of earlier sessions
        if self._batches:
            logger.info("%d requests of an earlier session are found again", len(self._batches))

    # -- one request --

    def learn_address(self, endpoint: str) -> None:
        """Notes an address, so that batches of earlier sessions, whose addresses have no password, can be asked for."""
        self._addresses[hide_secrets(endpoint)] = endpoint

    def request_of(self, payload: Mapping[str, Any]) -> _Request:
        """Returns the request's key and what is set aside for its call: with the first request of the call."""
        call = current_call()
        rollouts = () if call is None else call.rollouts
        place = _place_of(rollouts)
        content = hashlib.blake2b(canonical(payload), digest_size=16)
        about = content.digest() + place.encode()
        key = self._left_key(about) or self._next_key(content, place, 1 if call is None else call.attempt)
        reserved_usd = 0.0
        if call is not None:
            reserved_usd, call.reserved_usd = call.reserved_usd, 0.0
        return _Request(StoredRequest(key, place, reserved_usd), about)

    def _left_key(self, about: bytes) -> str | None:
        """Returns the key of an equal request whose call ended while its batch was at the service."""
        if about not in self._left:
            return None
        if not self._has_told_of_timeouts:
            logger.warning(
                "calls end before their batches do, and wait for them again in their next attempts: remove timeout_s "
                "and verdict_timeout_s from the limits, or make them longer than a batch takes"
            )
            self._has_told_of_timeouts = True
        keys = self._left[about]
        key = keys.popleft()
        if not keys:
            del self._left[about]
        return key

    def _next_key(self, content: hashlib.blake2b, place: str, attempt: int) -> str:
        """Returns the key of this attempt, or of a later one that an earlier session sent and that nobody has yet."""
        attempts = range(attempt, attempt + (_MAX_ATTEMPTS if self._found else 1))
        numbered = [self._numbered(content, place, number) for number in attempts]
        equal, key = next((one for one in numbered if one[1] in self._found), numbered[0])
        self._uses[equal] += 1
        return key

    def _numbered(self, content: hashlib.blake2b, place: str, attempt: int) -> tuple[bytes, str]:
        """Returns what equal requests of an attempt have in common, and the key of the next of them."""
        digest = content.copy()
        digest.update(f"\0{place}\0{attempt}".encode())
        equal = digest.digest()
        digest.update(b"\0%d" % (self._uses[equal] + 1))
        return equal, digest.hexdigest()

    def answer_before(self, key: str) -> Outcome | None:
        """Returns the answer that an earlier session got and did not deliver to the journal."""
        batch = self._batches.get(key)
        return self._store.answer(key) if batch is not None and batch.is_over and key not in batch.outcomes else None

    def batch_with(self, key: str) -> Batch | None:
        batch = self._batches.get(key)
        return None if batch is None or (batch.is_over and key not in batch.outcomes) else batch

    def gather(self, endpoint: str, request: StoredRequest, payload: Mapping[str, Any]) -> Batch:
        """Adds the request to the batch that gathers for this address, or begins one."""
        part = self._api(endpoint).encode(request.key, payload)
        batch = self._gathering.get(endpoint)
        if batch is not None and batch.num_bytes + len(part) > self._settings.max_bytes:
            batch.is_full.set()
            batch = None
        if batch is None or batch.is_full.is_set():
            batch = self._gathering[endpoint] = Batch(secrets.token_hex(16), endpoint)
        batch.add(request, part)
        self._batches[request.key] = batch
        if len(batch.requests) >= self._settings.max_requests:
            batch.is_full.set()
        return batch

    async def outcome_in(self, batch: Batch, request: _Request) -> Outcome | None:
        """Waits for the end of the batch; drives it if nobody does. Returns None if the batch was not created."""
        key = request.stored.key
        try:
            async with batch.lock:
                if not batch.is_over:
                    with outside_call():  # limits in the headers of polls are not those of requests
                        await self._drive(batch)
        except asyncio.CancelledError:
            if batch.is_gathering:
                batch.remove(key)
                del self._batches[key]
            else:
                self._left[request.about].append(key)
            raise
        return batch.outcomes.pop(key, None)

    async def _drive(self, batch: Batch) -> None:
        if batch.is_gathering:
            await self._wait_until_full(batch)
            batch.is_gathering = False
            if self._gathering.get(batch.endpoint) is batch:
                del self._gathering[batch.endpoint]
        await self._sender(batch.endpoint).finish(batch)

    async def _wait_until_full(self, batch: Batch) -> None:
        left_s = self._settings.linger_s - batch.elapsed_s
        if left_s > 0 and not batch.is_full.is_set():
            try:
                async with asyncio.timeout(left_s):
                    await batch.is_full.wait()
            except TimeoutError:
                batch.is_full.set()

    # -- the end --

    async def aclose(self, *, cancels: bool, forgets: bool) -> None:
        out = {batch.key: batch for batch in self._batches.values() if batch.made_s is not None and not batch.is_over}
        for batch in out.values() if cancels else ():
            try:
                await self._sender(batch.endpoint).cancel(batch)
            except CallError as error:
                logger.warning("batch %s could not be cancelled: %s", batch.id, error)
        if out:
            num_requests = sum(len(batch.requests) for batch in out.values())
            state = "were cancelled" if cancels else "go on at the service"
            logger.warning(
                "%d requests in %d batches %s; the same run, started again with its journal, collects what they gave",
                num_requests,
                len(out),
                state,
            )
        if forgets:
            await in_thread(self._store.forget, list(self.delivered))
        elif self.delivered and self._store.path is not None:
            logger.warning(
                "the answers to %d requests stay in %s, because the journal does not have all verdicts",
                len(self.delivered),
                self._store.path,
            )
        await in_thread(self._store.close)

    def _sender(self, endpoint: str) -> BatchSender:
        return BatchSender(self._api(endpoint), self._store, self._settings, self._known_ids)

    def _api(self, endpoint: str) -> BatchApi:
        address = self._addresses.get(endpoint, endpoint)
        if address not in self._apis:
            self._apis[address] = self._make_api(address)
        return self._apis[address]

    def _known_ids(self) -> frozenset[str]:
        return frozenset(batch.id for batch in self._batches.values() if batch.id is not None)


def _place_of(rollouts: Sequence[Rollout]) -> str:
    """Names a call by the places and all inputs of the rollouts that it is about.

    If any input changed, the call makes other requests, and those of before are not found again.
    """
    return verdict_keys("", rollouts, run="")[0].hex() if rollouts else ""
