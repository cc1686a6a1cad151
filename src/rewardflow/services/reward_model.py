"""Gets scores from a reward model that vLLM or SGLang serves.

Always true: a score is the finite number that the server sent; an answer of another shape raises `Unparsable`. The
policy's text stays inside its own turn. Servers tokenise the rendered chat template as a whole, so a control token in a
response could end the turn and begin another; such tokens are broken up before the request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from rewardflow.errors import InvalidInput, Unparsable
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.http.endpoint import (
    UNPRICED,
    check_cost,
    check_one_key,
    check_variable,
    endpoint_of_call,
    headers_to_send,
    read_addresses,
)
from rewardflow.services.http.reachability import check_reachability
from rewardflow.services.judges.fencing import inside_one_turn
from rewardflow.services.request_template import check_template, conversation, fill, prompt_text
from rewardflow.services.score_parsing import follow, priced_request, read_score
from rewardflow.services.service_record import HttpServiceRecord
from rewardflow.settings.rules import check_choice
from rewardflow.types import EMPTY, Reward, Rollout

RewardModelApi = Literal["pooling", "classify", "score", "sglang"]
SentAs = Literal["messages", "text"]

_MAX_VALUES_KEPT = 32
_WRITTEN_BY_OTHERS = ("assistant", "tool")  # roles whose messages come from the policy or its tools


@dataclass(frozen=True, kw_only=True)
class RewardModel(HttpServiceRecord):
    """A reward model served by vLLM (`pooling`, `classify`, `score`) or by SGLang (`sglang`, its native `/classify`).

    With `send="messages"`, the server's chat template renders prompt and response; with `send="text"`, they fill
    `template`, which should then hold the model's chat markup. SGLang takes only text. `score` sends prompt and
    response as a pair. Of several values the one at `index` is the score: by default that of the last token and the
    last class. `use_activation=False` asks vLLM for raw logits. `call_cost_usd` is the cost of a call, 0 on your own
    machine; it is required if the agent has a `max_cost_usd`.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.reward_model:RewardModel", "5e3fbbb6b12c95572f5d67c6c93ff22f"
    )

    model: str
    base_urls: str | Sequence[str]
    api: RewardModelApi = "pooling"
    send: SentAs = "messages"
    template: str = "{prompt}{response}"
    index: int = -1
    use_activation: bool | None = None
    api_key_env: str | None = None
    call_cost_usd: float | None = None
    version: str = ""

    def __post_init__(self) -> None:
        check_choice("api", self.api, get_args(RewardModelApi))
        check_choice("send", self.send, get_args(SentAs))
        object.__setattr__(self, "base_urls", read_addresses("base_urls", self.base_urls))
        check_variable("api_key_env", self.api_key_env)
        check_one_key("base_urls", self.base_urls, EMPTY, self.api_key_env)
        check_cost("call_cost_usd", self.call_cost_usd)
        check_template(self.template)
        if self.api == "sglang" and self.send == "messages":
            raise InvalidInput("SGLang's /classify takes text: set send='text' and a template with the chat markup")
        super().__post_init__()

    def identity_settings(self) -> dict[str, Any]:
        """Returns the settings that a score depends on: without address, key and cost."""
        return {name: getattr(self, name) for name in ("model", "api", "send", "template", "index", "use_activation")}

    async def check(self) -> None:
        """Raises `InvalidInput` if the key's variable is missing; logs an address or a model that seems missing."""
        headers = headers_to_send(EMPTY, self.api_key_env)
        lists = {one: f"{one.removesuffix('/v1')}/v1/models" for one in self.endpoints}
        await check_reachability(self._http, lists, headers, model=self.model)

    def price_problem(self) -> str | None:
        return None if self.call_cost_usd is not None else UNPRICED

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        return self.call_cost_usd

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(self.base_urls)

    async def compute_score(self, rollout: Rollout) -> Reward:
        path, payload = self._request(without_turns(rollout))
        url = endpoint_of_call(self.endpoints).removesuffix("/v1") + path
        with priced_request(self.call_cost_usd) as report:
            answer = await self._http.post_json(url, payload, headers=headers_to_send(EMPTY, self.api_key_env))
            report(answer)
        values = self._values(answer)
        if not -len(values) <= self.index < len(values):
            raise Unparsable(f"no value at index {self.index} of the {len(values)} in the answer", retryable=False)
        extras = {"values": values} if 1 < len(values) <= _MAX_VALUES_KEPT else EMPTY
        return Reward(value=values[self.index], extras=extras)

    def _request(self, rollout: Rollout) -> tuple[str, dict[str, Any]]:
        """Returns the path under the server's root, and the body of the request."""
        payload: dict[str, Any] = {"model": self.model}
        if self.api == "score":
            return "/score", {**payload, "text_1": prompt_text(rollout), "text_2": rollout.response}
        if self.api == "sglang":
            return "/classify", {**payload, "text": fill(self.template, rollout)}
        if self.use_activation is not None:
            payload["use_activation"] = self.use_activation
        if self.send == "messages":
            payload["messages"] = conversation(rollout)
        else:
            payload["input"] = fill(self.template, rollout)
        return f"/{self.api}", payload

    def _values(self, answer: Any) -> list[float]:
        """Returns the server's values for the sequence; if it has one row per token, those of the last row."""
        path = {"pooling": "data.0.data", "classify": "data.0.probs", "score": "data.0.score", "sglang": "embedding"}
        if self.api == "sglang" and isinstance(answer, list) and len(answer) == 1:  # as newer servers answer
            answer = answer[0]
        found = follow(answer, path[self.api])
        while isinstance(found, list) and found and isinstance(found[-1], list):
            found = found[-1]
        return [read_score(value) for value in (found if isinstance(found, list) else [found])]


def without_turns(rollout: Rollout) -> Rollout:
    """Returns the rollout without chat-template control tokens in the texts of the policy and its tools."""
    messages = tuple(
        {**message, "content": inside_one_turn(message["content"])}
        if message.get("role") in _WRITTEN_BY_OTHERS and isinstance(message.get("content"), str)
        else message
        for message in rollout.messages
    )
    return dataclasses.replace(rollout, response=inside_one_turn(rollout.response), messages=messages)
