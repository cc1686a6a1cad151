"""The batches of a mock judge: which requests they hold, when they end and what each request got.

Always true: a request of a batch is judged and counted once, when its batch is over, like a single call; one that
expired or was cancelled is neither. Whether a request fails or expires follows from its plan, as for single calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.behaviour import Behaviour
from rewardflow.mock_judge.chat_request import read_chat_request
from rewardflow.mock_judge.marking import share_of
from rewardflow.mock_judge.request_counts import Counts
from rewardflow.mock_judge.response_bodies import complete, completion_body, error_body
from rewardflow.mock_judge.settings import MockJudgeSettings

ResultKind = Literal["answered", "failed", "expired", "cancelled"]

_OF_TEXT: Final = frozenset({None, "malformed_verdict", "wrong_schema", "nan", "out_of_range"})
_STATUSES: Final = {"429": 429, "429_retry_after": 429, "502": 502}


@dataclass(frozen=True, slots=True)
class OrderedRequest:
    """One request of a batch: a chat completion under the client's own id."""

    custom_id: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What one request got: a chat completion or an error, with its status."""

    custom_id: str
    kind: ResultKind
    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class BatchOrder:
    """One batch. Times are the event loop's, but for `created_s`, which clients see."""

    id: str
    requests: Sequence[OrderedRequest]
    metadata: Mapping[str, Any]
    input_file_id: str
    created_s: float
    began_s: float
    takes_s: float
    cancelled_s: float | None = None
    num_done: int = 0  # when it was cancelled
    results: tuple[RequestResult, ...] | None = None


class BatchOrders:
    """All batches of one judge, in the order of their creation."""

    def __init__(self, settings: MockJudgeSettings, behaviour: Behaviour, counts: Counts) -> None:
        self._settings = settings
        self._behaviour = behaviour
        self._counts = counts
        self._orders: dict[str, BatchOrder] = {}
        self._ends_at_once = False

    def create(
        self, requests: Sequence[OrderedRequest], now_s: float, *, metadata: Mapping[str, Any], input_file_id: str = ""
    ) -> BatchOrder:
        ids = [one.custom_id for one in requests]
        if not requests or len(set(ids)) != len(ids):
            raise InvalidInput("a batch must hold at least one request, each under a custom_id of its own")
        settings, number = self._settings, len(self._orders)
        key = self._behaviour.key_of([number, ids])
        luck = self._behaviour.plan(key, 0).luck
        order = BatchOrder(
            id=f"batch_{number}_{key.hex()[:12]}",
            requests=requests,
            metadata=metadata,
            input_file_id=input_file_id,
            created_s=time.time(),
            began_s=now_s,
            takes_s=0.0 if self._ends_at_once else settings.batch_distribution(luck) * settings.scale,
        )
        self._orders[order.id] = order
        self._counts.batches += 1
        return order

    def end_all(self) -> None:
        """Makes every batch end now, and later ones at once. May be called from another thread."""
        self._ends_at_once = True
        for order in list(self._orders.values()):
            order.takes_s = 0.0

    def get(self, batch_id: str) -> BatchOrder | None:
        return self._orders.get(batch_id)

    def newest_first(self) -> list[BatchOrder]:
        return list(reversed(self._orders.values()))

    def cancel(self, order: BatchOrder, now_s: float) -> None:
        if order.results is None and order.cancelled_s is None and now_s < order.began_s + order.takes_s:
            order.cancelled_s = now_s
            order.num_done = math.floor((now_s - order.began_s) / order.takes_s * len(order.requests))

    def results_at(self, order: BatchOrder, now_s: float) -> tuple[RequestResult, ...] | None:
        """Returns the results, or None while the batch runs. A cancelled batch has done its share until then."""
        if order.results is None:
            end_s = order.began_s + order.takes_s if order.cancelled_s is None else order.cancelled_s
            if now_s >= end_s:
                num_done = len(order.requests) if order.cancelled_s is None else order.num_done
                order.results = tuple(
                    self._judged(one) if place < num_done else RequestResult(one.custom_id, "cancelled")
                    for place, one in enumerate(order.requests)
                )
        return order.results

    def _judged(self, request: OrderedRequest) -> RequestResult:
        settings = self._settings
        with self._counts.call() as record:
            try:
                chat = read_chat_request(orjson.dumps(request.content), takes_schema=settings.takes_schema)
                share = share_of(settings, chat.prompt)
            except InvalidInput as error:
                record.outcome = "bad_request"
                return _failed(request.custom_id, 400, str(error))
            key = self._behaviour.key_of(chat.content)
            times_before = self._counts.times_admitted(key)
            plan = self._behaviour.plan(key, times_before)
            if plan.luck < settings.batch_expired_share and self._counts.expire_once(key):
                record.outcome = "expired"
                return RequestResult(request.custom_id, "expired")
            self._counts.admit(key)
            record.outcome = plan.fault or "answered"
            if plan.fault not in _OF_TEXT:
                return _failed(
                    request.custom_id, _STATUSES.get(str(plan.fault), 500), f"the request failed: {plan.fault}"
                )
            completion = complete(chat, plan, settings.seed, share)
            model = settings.model_after(self._counts.num_answers)
            self._counts.add_answer(completion.prompt_tokens, len(completion.tokens))
            body = completion_body(
                completion,
                call_id=f"{key.hex()[:16]}-{times_before}",
                model=model,
                num_log_probs=chat.num_log_probs if settings.gives_log_probs else None,
            )
            return RequestResult(request.custom_id, "answered", 200, orjson.loads(body))


def _failed(custom_id: str, status: int, message: str) -> RequestResult:
    kind = {400: "invalid_request_error", 429: "rate_limit_error"}.get(status, "api_error")
    return RequestResult(custom_id, "failed", status, orjson.loads(error_body(message, kind)))
