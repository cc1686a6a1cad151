"""Forwards chat completions as they are, so that calls of other people's reward code are governed like a judge's.

Always true: the request's body goes out unchanged, with this service's own key; the answer comes back unchanged, in the
extra `completion`. Usage is reported before anything about the answer can fail. A request that the service refuses
(4xx) is not sent again, and `refusals` keeps its status for the caller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from rewardflow.errors import CallError, InvalidInput, Unparsable
from rewardflow.reward.calls.faults import is_free_of_charge
from rewardflow.reward.code.current_call import report_usage, request_of_unknown_cost
from rewardflow.reward.journal.canonical import OUTSIDE_IDENTITY
from rewardflow.services.http.charged_tokens import TEMPLATE_TOKENS, MostTokens, most_completion_tokens
from rewardflow.services.http.chat import chat_url
from rewardflow.services.http.chat_answer import read_usage
from rewardflow.services.http.endpoint import check_addresses, check_variable, endpoint_of_call, headers_to_send
from rewardflow.services.prices import Prices, known_prices, warn_of_no_price
from rewardflow.services.service_record import HttpServiceRecord
from rewardflow.types import EMPTY, Rollout

_MAX_REFUSALS: Final = 10_000
_TEXT_PARTS: Final = ("text", "refusal")


@dataclass(frozen=True, eq=False, kw_only=True)
class ForwardedChat(HttpServiceRecord):
    """A service for chat completions at one or more addresses. A rollout's `extra_info["request"]` is the body."""

    base_urls: tuple[str, ...] = field(metadata=OUTSIDE_IDENTITY)  # the model is in the request
    api_key_env: str | None = field(default=None, metadata=OUTSIDE_IDENTITY)
    prices: Prices | None = field(default=None, metadata=OUTSIDE_IDENTITY)
    refusals: OrderedDict[str, int] = field(default_factory=OrderedDict, metadata=OUTSIDE_IDENTITY, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base_urls:
            raise InvalidInput("base_url must name at least one address")
        check_addresses("base_url", self.base_urls)
        check_variable("api_key_env", self.api_key_env)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.base_urls

    def check(self) -> None:
        headers_to_send(EMPTY, self.api_key_env)

    async def compute_score(self, extra_info: Mapping[str, Any]) -> dict[str, Any]:
        body, endpoint = extra_info["request"], endpoint_of_call(self.base_urls)
        with request_of_unknown_cost(is_free_of_charge) as cost_is_told:
            try:
                headers = headers_to_send(EMPTY, self.api_key_env)
                answer = await self._http.post_json(chat_url(endpoint), body, headers=headers)
            except CallError as error:
                self._note_refusal(str(extra_info["group_uid"]), error)
                raise
            if not isinstance(answer, Mapping):
                raise Unparsable("the service answered with JSON that is no object")
            if self._report(answer, body, endpoint):
                cost_is_told()
            if "choices" not in answer:
                raise Unparsable("the service answered with an object that is no chat completion")
        return {"score": 1.0, "completion": answer}

    def price_problem(self) -> str | None:
        if self.prices is not None:
            return None
        return "prices differ by model: set proxy.input_usd_per_million and proxy.output_usd_per_million"

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        """Returns the most that a request can cost.

        Returns None without a price or a limit of tokens, and for a request with anything but text: an image, a sound
        or a search costs more than the bytes of the request tell.
        """
        body = rollout.extra_info["request"]
        answer_tokens = most_completion_tokens(body)
        num_answers = 1 if body.get("n") is None else body["n"]
        is_counted = isinstance(num_answers, int) and num_answers >= 1
        if answer_tokens is None or not is_counted or not _is_only_text(body):
            return None
        prompt_tokens = len(rollout.response.encode()) + TEMPLATE_TOKENS
        model = str(body.get("model"))
        prices = [self.prices or known_prices(model, place, prompt_tokens) for place in self.base_urls]
        bounds = [None if one is None else one.bound_usd(prompt_tokens, num_answers * answer_tokens) for one in prices]
        return None if None in bounds else max(one for one in bounds if one is not None)

    def _report(self, answer: Mapping[str, Any], body: Mapping[str, Any], endpoint: str) -> bool:
        """Reports the usage to the agent; returns whether it told the cost."""
        messages = body.get("messages")
        usage = read_usage(answer.get("usage"), MostTokens.of(messages if isinstance(messages, list) else (), body))
        model = str(body.get("model"))
        prices = self.prices or known_prices(model, endpoint, usage.prompt_tokens)
        if usage.has_tokens or usage.cost_usd is not None:
            cost_usd = usage.cost_usd if self.prices is None or not usage.has_tokens else None
            if cost_usd is None and prices is not None:
                cost_usd = prices.cost_usd(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
            if cost_usd is None:
                warn_of_no_price(model)
            report_usage(cost_usd=cost_usd, tokens=usage.prompt_tokens + usage.completion_tokens)
            return cost_usd is not None
        return False

    def _note_refusal(self, name: str, error: CallError) -> None:
        status = getattr(error, "status", None)
        self.refusals.pop(name, None)
        if isinstance(status, int) and 400 <= status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS:
            self.refusals[name] = status
            if len(self.refusals) > _MAX_REFUSALS:
                self.refusals.popitem(last=False)


def _is_only_text(body: Mapping[str, Any]) -> bool:
    """Whether the bytes of a request bound the tokens of its prompt."""
    messages = body.get("messages")
    return isinstance(messages, list) and all(
        isinstance(message, Mapping) and _is_text(message.get("content")) and not message.get("audio")
        for message in messages
    )


def _is_text(content: Any) -> bool:
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS) for part in content
    )
