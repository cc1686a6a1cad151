"""The governed proxy: `/v1/chat/completions` of another service, with this server's limits, retries, cap and journal.

Always true: people keep their own reward code and change its `base_url`. A request with `temperature: 0` is known by
job and content, so that a repeat gets the same answer without a call; any other request is a call of its own, unless it
has an `Idempotency-Key`, which counts together with the content. A failed request is answered with an error status and
may be sent again. Nothing is streamed.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rewardflow.errors import InvalidInput
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.journal.canonical import canonical
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.serve.http_json import error_answer, failure_answer, json_answer
from rewardflow.serve.repeatable_requests import RepeatableRequests
from rewardflow.serve.settings import ProxySettings
from rewardflow.serve.trainers import TrainerRequest
from rewardflow.services.forwarded_chat import ForwardedChat
from rewardflow.services.prices import Prices
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from aiohttp import web

_MAX_KEY: Final = 200
_OWN_NAMES: Final = ("run", "run_dir", "reuse", "replay_failures")


class ChatProxy:
    """Makes the proxy's agent, and answers its requests."""

    def __init__(self, settings: ProxySettings, run_ledgers: RunLedgers) -> None:
        for name in _OWN_NAMES:
            if name in settings.limits:
                raise InvalidInput(f"proxy.limits takes no {name!r}: the server sets it")
        prices = None
        if settings.input_usd_per_million is not None or settings.output_usd_per_million is not None:
            prices = Prices.of(
                {
                    name: value
                    for name in ("input_usd_per_million", "output_usd_per_million")
                    if (value := getattr(settings, name)) is not None
                }
            )
        base_urls = (settings.base_url,) if isinstance(settings.base_url, str) else tuple(settings.base_url)
        self._service = ForwardedChat(base_urls=base_urls, api_key_env=settings.api_key_env, prices=prices)
        self._limits = settings.limits
        self._run_ledgers = run_ledgers

    def build(self) -> RewardAgent:
        options: Any = {**self._limits, "replay_failures": False}
        return RewardAgent(self._service, serves_runs=True, run_ledgers=self._run_ledgers, **options)

    async def complete(
        self, body: Any, asked: TrainerRequest, key: str | None, requests: RepeatableRequests
    ) -> web.Response:
        rollout = _rollout_of(body, key)
        (future,) = await requests.ask(asked.job, [rollout], due_step=asked.due_step, is_batch=True)
        reward = await asyncio.shield(future)
        if reward.value is not None:
            headers = {"X-Rewardflow-Cost-Usd": f"{reward.cost_usd:.9g}", "X-Rewardflow-Attempts": str(reward.attempts)}
            return json_answer(reward.extras["completion"], headers=headers)
        status = self._service.refusals.get(rollout.group_id)
        if status is not None and reward.kind in ("service", "user_error"):
            return error_answer(status, f"the service refused the request: {reward.error}", "invalid_request_error")
        return failure_answer(reward)


def _rollout_of(body: Any, key: str | None) -> Rollout:
    """Makes the rollout that stands for a request. Its response is the request's text, which the journal shows."""
    if not isinstance(body, Mapping) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise InvalidInput(f"the body must be an object with `messages`, got {body!r:.100}")
    if not all(isinstance(message, Mapping) for message in body["messages"]):
        raise InvalidInput(f"messages must be objects, got {body['messages']!r:.100}")
    if not isinstance(body.get("model"), str):
        raise InvalidInput(f"model must be a name, got {body.get('model')!r:.100}")
    if body.get("stream"):
        raise InvalidInput("this proxy does not stream: leave `stream` out, or set it to false")
    if key is not None and not 0 < len(key) <= _MAX_KEY:
        raise InvalidInput(f"Idempotency-Key must have 1 to {_MAX_KEY} characters, got {len(key)}")
    content = canonical(body)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    if key is not None:
        name = f"key-{key}-{digest}"
    elif isinstance(body.get("temperature"), int | float) and body["temperature"] == 0:
        name = f"content-{digest}"
    else:
        name = f"once-{uuid.uuid4().hex}"
    return Rollout(group_id=name, response=content.decode("utf-8", "replace"), extra_info={"request": dict(body)})
