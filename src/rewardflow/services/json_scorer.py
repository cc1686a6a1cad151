"""Gets scores from any server that takes JSON and answers with JSON.

Always true: a score is the finite number that the server sent, unscaled and unclipped; an answer of another shape
raises `Unparsable`. If a batch has numbers for some rollouts only, only the other rollouts fail.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewardflow.errors import InvalidInput, Unparsable
from rewardflow.reward.code.results import describe
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
from rewardflow.services.request_template import as_text, check_template, fill, fill_batch
from rewardflow.services.score_parsing import follow, priced_request, read_score
from rewardflow.services.service_record import HttpServiceRecord
from rewardflow.types import EMPTY, Reward, Rollout


@dataclass(frozen=True, kw_only=True)
class JsonScorer(HttpServiceRecord):
    """Posts `request` with its placeholders filled, and reads the score at `score_path` of the JSON answer.

    Placeholders: {prompt}, {response}, {ground_truth}, {data_source}, {messages}, {group_id}, {index}, {step} and
    {extra_info.key}; a text that is one placeholder keeps the value's type; `{{` is a brace. With `batch`, one request
    scores a whole group: every text with a placeholder becomes a list with one entry per rollout, and the score path
    leads to a list. `batch=True` alone fits reward servers written for OpenRLHF.

    `scorer` names the scorer behind the address: the journal then keeps verdicts under this name, whatever the address.
    Without it the addresses identify the scorer. `call_cost_usd` is the cost of a request, 0 on your own machine; it is
    required if the agent has a `max_cost_usd`.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.json_scorer:JsonScorer", "0d207f681fd8aac2f84d02024e1ee1b3"
    )

    urls: str | Sequence[str]
    request: Mapping[str, Any] | None = None
    score_path: str | None = None
    explanation_path: str | None = None
    batch: bool = False
    scorer: str = ""
    api_key_env: str | None = None
    api_key_header: str = "Authorization"
    call_cost_usd: float | None = None
    version: str = ""

    def __post_init__(self) -> None:
        put = functools.partial(object.__setattr__, self)
        put("urls", read_addresses("urls", self.urls))
        check_variable("api_key_env", self.api_key_env)
        check_one_key("urls", self.urls, EMPTY, self.api_key_env, self.api_key_header)
        check_cost("call_cost_usd", self.call_cost_usd)
        put("request", dict((_OPENRLHF if self.batch else _ONE) if self.request is None else self.request))
        put("score_path", ("rewards" if self.batch else "score") if self.score_path is None else self.score_path)
        check_template(self.request)
        if self.batch and self.explanation_path is not None:
            raise InvalidInput("explanation_path is for one rollout at a time, got it with batch=True")
        super().__post_init__()

    def identity_settings(self) -> dict[str, Any]:
        """Returns the settings that a score depends on. Without a name, only its addresses identify a scorer."""
        settings = {name: getattr(self, name) for name in ("request", "score_path", "explanation_path", "batch")}
        return {**settings, "scorer": self.scorer or sorted(self.endpoints)}

    async def check(self) -> None:
        """Raises `InvalidInput` if the key's variable is missing; logs an address that does not answer.

        Any answer counts, because only a rollout could show whether the server scores.
        """
        headers = headers_to_send(EMPTY, self.api_key_env, self.api_key_header)
        await check_reachability(self._http, {one: one for one in self.endpoints}, headers)

    def price_problem(self) -> str | None:
        return None if self.call_cost_usd is not None else UNPRICED

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        if self.call_cost_usd is None or not self.batch:
            return self.call_cost_usd
        return self.call_cost_usd / rollout.group_size  # one request for the whole group

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(self.urls)

    async def compute_score(self, rollout: Rollout) -> Reward:
        answer = await self._post(fill(self.request, rollout))
        score = read_score(follow(answer, self.score_path or ""))
        explanation = None if self.explanation_path is None else follow(answer, self.explanation_path)
        return Reward(value=score, explanation=None if explanation is None else as_text(explanation))

    @property
    def score_group(self) -> Callable[..., Any] | None:
        """Set only with `batch`, because the agent scores whole groups wherever a reward has this method."""
        return self._score_batch if self.batch else None

    async def _score_batch(self, rollouts: Sequence[Rollout]) -> list[Reward]:
        answer = await self._post(fill_batch(self.request, rollouts))
        scores = follow(answer, self.score_path or "")
        if not isinstance(scores, list) or len(scores) != len(rollouts):
            got = f"{len(scores)} scores" if isinstance(scores, list) else describe(scores)
            raise Unparsable(f"a list of {len(rollouts)} scores must be at {self.score_path!r}, got {got}")
        return [_one_of_batch(score) for score in scores]

    async def _post(self, payload: Any) -> Any:
        headers = headers_to_send(EMPTY, self.api_key_env, self.api_key_header)
        with priced_request(self.call_cost_usd) as report:
            answer = await self._http.post_json(endpoint_of_call(self.endpoints), payload, headers=headers)
            report(answer)
        return answer


_ONE = {"prompt": "{prompt}", "response": "{response}", "ground_truth": "{ground_truth}"}
_OPENRLHF = {"query": "{prompt}{response}", "prompts": "{prompt}", "labels": "{ground_truth}"}


def _one_of_batch(score: Any) -> Reward:
    try:
        return Reward(value=read_score(score))
    except Unparsable as error:
        return Reward(kind="unparsable", error=str(error))
