"""A client for chat completions of OpenAI, vLLM, SGLang, llama.cpp and gateways, or over a given AsyncOpenAI client.

Always true: one `complete` returns one answer, and reports its usage before anything about the answer can fail. The
client reads the key from the environment for each request and does not keep it. If an endpoint refuses a request
because of the JSON schema, the client sends no schema to it for ten minutes.

An address without a path gets `/v1`: `http://localhost:8000` and `http://localhost:8000/v1` are the same. An address
with a path stays as it is. `/chat/completions` is added to both unless it is already there.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import address_to_show, is_free_of_secrets, register_secret
from rewardflow.reward.calls.faults import is_free_of_charge
from rewardflow.reward.code.current_call import report_usage, request_of_unknown_cost
from rewardflow.services.batches.anthropic_batches import AnthropicBatches
from rewardflow.services.batches.batch_api import BatchApi
from rewardflow.services.batches.batch_client import BatchClient
from rewardflow.services.batches.openai_batches import OpenAIBatches
from rewardflow.services.batches.settings import BatchSettings
from rewardflow.services.http.charged_tokens import (
    TEMPLATE_TOKENS,
    USUAL_COMPLETION_TOKENS,
    MostTokens,
    completion_limit,
    most_completion_tokens,
)
from rewardflow.services.http.chat_answer import ChatAnswer, Usage, read_answer
from rewardflow.services.http.endpoint import (
    check_addresses,
    check_flag,
    check_headers,
    check_one_key,
    check_variable,
    endpoint_of_call,
    headers_to_send,
    warn_of_readable_key,
)
from rewardflow.services.http.http_client import HttpClient
from rewardflow.services.http.reachability import check_reachability
from rewardflow.services.prices import Prices, known_prices, warn_of_no_price
from rewardflow.types import EMPTY

_ROUTE = "/chat/completions"
_OURS = ("model", "messages", "response_format", "logprobs", "top_logprobs", "stream", "n")
_SCHEMA_REFUSALS = frozenset({400, 415, 422, 501})
_ABOUT_SCHEMA = re.compile("response_?format|schema|grammar|structured", re.IGNORECASE)
_SCHEMA_REFUSAL_S = 600.0  # then tries again: the server may have been replaced by one that knows schemas
# Arguments that AsyncOpenAI takes by name; settings of other servers go into its extra_body.
_OPENAI_NAMES = frozenset(
    {
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "presence_penalty"),
        *("frequency_penalty", "logit_bias", "reasoning_effort", "verbosity", "service_tier", "user", "metadata"),
        *("extra_body", "extra_headers", "extra_query"),
    }
)
_ANTHROPIC_HEADERS = {"anthropic-version": "2023-06-01"}
_CHARS_PER_TOKEN = 4.0
_SHARE_OF_NEWEST = 0.05


class ChatClient:
    """A client of one model at one or more addresses. The agent chooses the address for each call."""

    def __init__(
        self,
        *,
        base_urls: Sequence[str] = (),
        model: str,
        api_key_env: str | None = None,
        sampling: Mapping[str, Any] = EMPTY,
        prices: Prices | None = None,
        client: Any = None,
        headers: Mapping[str, str] = EMPTY,
        schema_fallback: bool = True,
        keep_alive: bool = True,
        batch: BatchSettings | None = None,
    ) -> None:
        """With `batch`, requests are sent in batches at a lower price, and their answers may take hours."""
        _check_settings(base_urls, model, sampling, client)
        if client is not None and batch is not None:
            raise InvalidInput("batch must not be set with a client: batches are sent to base_urls")
        check_flag("keep_alive", keep_alive)
        if client is not None and not keep_alive:
            raise InvalidInput("keep_alive must not be set with a client: the client keeps its own connections")
        check_variable("api_key_env", api_key_env)
        check_headers(headers)
        check_one_key("base_urls", base_urls, headers, None if _is_anthropic(batch) else api_key_env)
        self.endpoints: tuple[str, ...] = tuple(base_urls)
        self._urls = {base_url: chat_url(base_url) for base_url in base_urls}
        self._model = model
        self._api_key_env = api_key_env
        self._sampling = dict(sampling)
        self._prices = prices
        self._client = _without_retries(client)
        self._headers = dict(headers)
        self._schema_fallback = schema_fallback
        self._http = HttpClient(keep_alive=keep_alive) if client is None else None
        self._batch = batch
        self.batches = None if batch is None else BatchClient(batch, self._batch_api)
        self._takes_schema: set[str] = set()
        self._refused_schema_at: dict[str, float] = {}
        self._usual_completion_tokens = float(min(USUAL_COMPLETION_TOKENS, completion_limit(self._sampling)))

    async def check(self) -> None:
        """Raises `InvalidInput` if an environment variable is missing; logs problems of the service.

        Asks each address for its list of models, which costs nothing. Does not test a client that was passed in.
        """
        headers = self._headers_to_send()
        if self._http is not None:
            await check_reachability(
                self._http, {one: route_url(one, "/models") for one in self.endpoints}, headers, model=self._model
            )

    def price_problem(self) -> str | None:
        """Says why the cost of a call is unknown, and what to set; returns None if the cost is known."""
        places = self.endpoints or (self._endpoint(),)
        if all(self._prices_at(place) is not None for place in places):
            return None
        return f"no price is known for the model {self._model}: set prices of the judge, or call_cost_usd of the agent"

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        schema: Mapping[str, Any] | None = None,
        schema_name: str = "verdict",
        logprobs: int = 0,
    ) -> ChatAnswer:
        """Returns the model's answer, in the shape of the schema if the server can enforce it."""
        endpoint = self._endpoint()
        payload: dict[str, Any] = {"model": self._model, "messages": list(messages), **self._sampling}
        if logprobs:
            payload["logprobs"] = True
            payload["top_logprobs"] = logprobs
        with request_of_unknown_cost(is_free_of_charge) as cost_is_told:
            answer, is_held_to_schema = await self._ask(endpoint, payload, schema, schema_name)
            raw = read_answer(answer, MostTokens.of(messages, self._sampling))
            if self._report(raw.usage, endpoint):
                cost_is_told()
            if raw.problem is not None:
                raise raw.problem
        return ChatAnswer(
            raw.text,
            raw.tokens,
            raw.usage.prompt_tokens,
            raw.usage.completion_tokens,
            raw.finish_reason,
            is_held_to_schema,
            raw.model,
        )

    def estimate_tokens(self, num_chars: int) -> int:
        """Estimates the tokens of a call with a prompt of this length, from the average answer so far."""
        return round(num_chars / _CHARS_PER_TOKEN + self._usual_completion_tokens)

    def cost_bound_usd(self, num_bytes: int) -> float | None:
        """Returns the most that a request with a prompt of this many bytes can cost, at the dearest endpoint.

        A token stands for at least one byte of the prompt. Returns None if a price is unknown, or if the settings do
        not limit the tokens of the answer.
        """
        completion_tokens = most_completion_tokens(self._sampling)
        places = self.endpoints or (self._endpoint(),)
        prompt_tokens = num_bytes + TEMPLATE_TOKENS
        prices = [self._prices_at(place, prompt_tokens) for place in places]
        if completion_tokens is None or any(one is None for one in prices):
            return None
        return max(one.bound_usd(prompt_tokens, completion_tokens) for one in prices if one is not None)

    async def aclose(self) -> None:
        """Closes this client's own connections. The caller closes a client that it passed in."""
        if self.batches is not None:
            await self.batches.aclose()
        if self._http is not None:
            await self._http.aclose()

    # -- sending --

    async def _ask(
        self, endpoint: str, payload: dict[str, Any], schema: Mapping[str, Any] | None, schema_name: str
    ) -> tuple[Any, bool]:
        """Returns the server's answer, and whether the server accepted the schema."""
        if schema is None or self._is_anthropic or self._refuses_schema(endpoint):
            return await self._send(endpoint, payload), False
        shape = {"type": "json_schema", "json_schema": {"name": schema_name, "strict": True, "schema": schema}}
        try:
            answer = await self._send(endpoint, {**payload, "response_format": shape})
        except Exception as refusal:
            if not self._may_be_about_schema(refusal, endpoint):
                raise
        else:
            self._takes_schema.add(endpoint)
            return answer, True
        answer = await self._send(endpoint, payload)  # raises again if the schema was not the problem
        if endpoint not in self._takes_schema:
            self._refused_schema_at[endpoint] = asyncio.get_running_loop().time()
        return answer, False

    def _refuses_schema(self, endpoint: str) -> bool:
        refused_at = self._refused_schema_at.get(endpoint)
        # A time from another event loop may be later than now; it is ignored.
        return refused_at is not None and 0 <= asyncio.get_running_loop().time() - refused_at < _SCHEMA_REFUSAL_S

    def _may_be_about_schema(self, refusal: Exception, endpoint: str) -> bool:
        if not self._schema_fallback or endpoint in self._takes_schema:
            return False
        status = getattr(refusal, "status", None) or getattr(refusal, "status_code", None)
        return status in _SCHEMA_REFUSALS and _ABOUT_SCHEMA.search(str(refusal)) is not None

    async def _send(self, endpoint: str, payload: dict[str, Any]) -> Any:
        if self.batches is not None:
            return await self.batches.send(endpoint, payload)
        if self._http is not None:
            return await self._http.post_json(self._urls[endpoint], payload, headers=self._headers_to_send())
        extra = {name: payload[name] for name in self._sampling if name not in _OPENAI_NAMES}
        arguments = {name: value for name, value in payload.items() if name not in extra}
        if extra:
            arguments["extra_body"] = {**arguments.get("extra_body", {}), **extra}
        answer = await self._client.chat.completions.create(**arguments)
        return answer.model_dump() if hasattr(answer, "model_dump") else answer

    def _endpoint(self) -> str:
        if self._client is not None:
            return str(getattr(self._client, "base_url", ""))
        return endpoint_of_call(self.endpoints)

    def _headers_to_send(self) -> dict[str, str]:
        if self._is_anthropic:
            return headers_to_send({**_ANTHROPIC_HEADERS, **self._headers}, self._api_key_env, "x-api-key")
        return headers_to_send(self._headers, self._api_key_env if self._client is None else None)

    @property
    def _is_anthropic(self) -> bool:
        return _is_anthropic(self._batch)

    def _batch_api(self, endpoint: str) -> BatchApi:
        assert self._http is not None  # batches are refused with a client that was passed in
        make = AnthropicBatches if self._is_anthropic else OpenAIBatches
        return make(self._http, route_url(endpoint, ""), self._headers_to_send)

    # -- usage and cost --

    def _report(self, usage: Usage, endpoint: str) -> bool:
        """Reports the usage to the agent; returns whether it told the cost."""
        if not usage.has_tokens and usage.cost_usd is None:
            return False
        cost_usd = self._cost_usd(usage, endpoint)
        prices = self._prices_at(endpoint, usage.prompt_tokens)
        report_usage(
            cost_usd=cost_usd,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cache_saved_usd=0.0 if prices is None else prices.saved_usd(usage.cached_tokens),
        )
        if usage.has_tokens:
            self._usual_completion_tokens += _SHARE_OF_NEWEST * (
                usage.completion_tokens - self._usual_completion_tokens
            )
        return cost_usd is not None

    def _cost_usd(self, usage: Usage, endpoint: str) -> float | None:
        """Computes the cost from the judge's prices, the cost that the service sent, or the price list, in this order.

        Returns None if no price is known, which does not mean free: the agent then uses its call_cost_usd.
        """
        if not usage.has_tokens or (self._prices is None and usage.cost_usd is not None):
            return usage.cost_usd
        prices = self._prices_at(endpoint, usage.prompt_tokens)
        if prices is None:
            warn_of_no_price(self._model)
            return None
        return prices.cost_usd(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)

    def _prices_at(self, endpoint: str, prompt_tokens: int = 0) -> Prices | None:
        """Returns the judge's prices, or those of the price list for such a prompt; in batches their share."""
        prices = self._prices or known_prices(self._model, endpoint, prompt_tokens)
        return prices if prices is None or self._batch is None else prices.times(self._batch.price_share)


def chat_url(base_url: str) -> str:
    """Returns the URL of chat completions, by the rule at the top of this module."""
    parts = urllib.parse.urlsplit(base_url)
    path = parts.path.rstrip("/") or "/v1"
    return parts._replace(path=path if path.endswith(_ROUTE) else path + _ROUTE).geturl()


def route_url(base_url: str, route: str) -> str:
    """Returns the URL of another route of the server, as `/models`, next to its chat completions."""
    parts = urllib.parse.urlsplit(chat_url(base_url))
    return parts._replace(path=parts.path.removesuffix(_ROUTE) + route).geturl()


# -- settings --


def _is_anthropic(batch: BatchSettings | None) -> bool:
    return batch is not None and batch.api == "anthropic"


def _check_settings(base_urls: Sequence[str], model: str, sampling: Mapping[str, Any], client: Any) -> None:
    if isinstance(base_urls, str):
        raise InvalidInput(f"base_urls must be a list of addresses, got the single text {address_to_show(base_urls)!r}")
    check_addresses("base_urls", base_urls)
    if bool(base_urls) == (client is not None):
        raise InvalidInput(f"exactly one of base_urls and client must be given, got {'both' if base_urls else 'none'}")
    if not isinstance(model, str) or not model:
        raise InvalidInput(f"model must be a name, got {model!r}")
    taken = [name for name in sampling if name in _OURS]
    if taken:
        raise InvalidInput(f"sampling must not set {', '.join(taken)}: the judge does")


def _without_retries(client: Any) -> Any:
    """Turns the client's retries off: the agent retries, and hidden retries would escape its rate limit and budget."""
    if client is not None and not hasattr(getattr(getattr(client, "chat", None), "completions", None), "create"):
        raise InvalidInput(f"client must have chat.completions.create, as AsyncOpenAI has, got {type(client).__name__}")
    key = getattr(client, "api_key", None)
    if isinstance(key, str):
        register_secret(key)
        if not is_free_of_secrets(key):  # "EMPTY" stands for no key
            warn_of_readable_key(str(getattr(client, "base_url", "")), {"Authorization": key})
    return client.with_options(max_retries=0) if hasattr(client, "with_options") else client
