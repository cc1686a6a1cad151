"""Scores from servers that give numbers, not words: reward models on vLLM and SGLang, and any scorer that speaks JSON.

Always true: a score is the finite number that the server sent, unscaled and unclipped; an answer of another shape is
`Unparsable`, with what was expected and what came. In a batch, an answer with a number for some rollouts fails only
the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

from rewardflow.errors import InvalidInput, Unparsable
from rewardflow.reward.call import report_usage
from rewardflow.reward.results import describe
from rewardflow.reward.services.endpoint import (
    check_addresses,
    check_choice,
    check_variable,
    endpoint_of_call,
    headers_to_send,
)
from rewardflow.reward.services.http import HttpClient
from rewardflow.types import EMPTY, Reward, Rollout

RewardModelApi = Literal["pooling", "classify", "score", "sglang"]
SentAs = Literal["messages", "text"]

_MAX_VALUES_KEPT = 32


# -- reward models --


@dataclass(frozen=True, kw_only=True)
class RewardModel:
    """A reward model served by vLLM (`pooling`, `classify`, `score`) or by SGLang (`sglang`, its native `/classify`).

    Sent as `messages`, prompt and response go through the server's chat template; as `text`, they fill `template`,
    which is the only way for SGLang and should then hold the model's chat markup. `score` sends prompt and response as
    a pair. Of several values the one at `index` counts: the last token's and the last class's by default.
    `use_activation=False` asks vLLM for raw logits.
    """

    model: str
    base_urls: str | Sequence[str]
    api: RewardModelApi = "pooling"
    send: SentAs = "messages"
    template: str = "{prompt}{response}"
    index: int = -1
    use_activation: bool | None = None
    api_key_env: str | None = None
    version: str = ""

    def __post_init__(self) -> None:
        check_choice("api", self.api, get_args(RewardModelApi))
        check_choice("send", self.send, get_args(SentAs))
        object.__setattr__(self, "base_urls", _addresses("base_urls", self.base_urls))
        check_variable("api_key_env", self.api_key_env)
        check_template(self.template)
        if self.api == "sglang" and self.send == "messages":
            raise InvalidInput("SGLang's /classify takes text: set send='text' and a template with the chat markup")

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(self.base_urls)

    async def compute_score(self, rollout: Rollout) -> Reward:
        path, payload = self._request(rollout)
        url = endpoint_of_call(self.endpoints).removesuffix("/v1") + path
        answer = await self._http.post_json(url, payload, headers=headers_to_send(EMPTY, self.api_key_env))
        _report_usage(answer)
        values = self._values(answer)
        if not -len(values) <= self.index < len(values):
            raise Unparsable(f"no value at index {self.index} of the {len(values)} in the answer", retryable=False)
        extras = {"values": values} if 1 < len(values) <= _MAX_VALUES_KEPT else EMPTY
        return Reward(value=values[self.index], extras=extras)

    async def aclose(self) -> None:
        await self._http.aclose()

    @functools.cached_property
    def _http(self) -> HttpClient:
        return HttpClient()

    def __getstate__(self) -> dict[str, Any]:
        """Settings travel, connections do not."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def _request(self, rollout: Rollout) -> tuple[str, dict[str, Any]]:
        """The path under the server's root and what to post there."""
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
        """What the server gave for the one sequence; of one row for each token, the last row."""
        path = {"pooling": "data.0.data", "classify": "data.0.probs", "score": "data.0.score", "sglang": "embedding"}
        if self.api == "sglang" and isinstance(answer, list) and len(answer) == 1:  # as newer servers answer
            answer = answer[0]
        found = follow(answer, path[self.api])
        while isinstance(found, list) and found and isinstance(found[-1], list):
            found = found[-1]
        return [read_score(value) for value in (found if isinstance(found, list) else [found])]


# -- any scorer that speaks JSON --


@dataclass(frozen=True, kw_only=True)
class JsonScorer:
    """Posts `request` with its placeholders filled, and reads the score at `score_path` of the JSON that comes back.

    Placeholders: {prompt}, {response}, {ground_truth}, {data_source}, {messages}, {group_id}, {index}, {step} and
    {extra_info.key}; a text that is one placeholder keeps the value's type; `{{` is a brace. With `batch`, the server
    is asked once for each group: every text with a placeholder becomes a list with one entry per rollout, and the score
    path leads to a list. `batch=True` alone fits reward servers written for OpenRLHF.
    """

    urls: str | Sequence[str]
    request: Mapping[str, Any] | None = None
    score_path: str | None = None
    explanation_path: str | None = None
    batch: bool = False
    api_key_env: str | None = None
    api_key_header: str = "Authorization"
    version: str = ""

    def __post_init__(self) -> None:
        put = functools.partial(object.__setattr__, self)
        put("urls", _addresses("urls", self.urls))
        check_variable("api_key_env", self.api_key_env)
        put("request", dict((_OPENRLHF if self.batch else _ONE) if self.request is None else self.request))
        put("score_path", ("rewards" if self.batch else "score") if self.score_path is None else self.score_path)
        check_template(self.request)
        if self.batch and self.explanation_path is not None:
            raise InvalidInput("explanation_path is for one rollout at a time, got it with batch=True")

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(self.urls)

    async def compute_score(self, rollout: Rollout) -> Reward:
        answer = await self._post(fill(self.request, rollout))
        score = read_score(follow(answer, self.score_path or ""))
        explanation = None if self.explanation_path is None else follow(answer, self.explanation_path)
        return Reward(value=score, explanation=None if explanation is None else _as_text(explanation))

    @property
    def score_group(self) -> Callable[..., Any] | None:
        """Only the batch form has it, and the agent scores whole groups where a reward can."""
        return self._score_batch if self.batch else None

    async def aclose(self) -> None:
        await self._http.aclose()

    @functools.cached_property
    def _http(self) -> HttpClient:
        return HttpClient()

    def __getstate__(self) -> dict[str, Any]:
        """Settings travel, connections do not."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    async def _score_batch(self, rollouts: Sequence[Rollout]) -> list[Reward]:
        answer = await self._post(fill_batch(self.request, rollouts))
        scores = follow(answer, self.score_path or "")
        if not isinstance(scores, list) or len(scores) != len(rollouts):
            got = f"{len(scores)} scores" if isinstance(scores, list) else describe(scores)
            raise Unparsable(f"a list of {len(rollouts)} scores must be at {self.score_path!r}, got {got}")
        return [_one_of_batch(score) for score in scores]

    async def _post(self, payload: Any) -> Any:
        headers = headers_to_send(EMPTY, self.api_key_env, self.api_key_header)
        answer = await self._http.post_json(endpoint_of_call(self.endpoints), payload, headers=headers)
        _report_usage(answer)
        return answer


_ONE = {"prompt": "{prompt}", "response": "{response}", "ground_truth": "{ground_truth}"}
_OPENRLHF = {"query": "{prompt}{response}", "prompts": "{prompt}", "labels": "{ground_truth}"}


def _one_of_batch(score: Any) -> Reward:
    try:
        return Reward(value=read_score(score))
    except Unparsable as error:
        return Reward(kind="unparsable", error=str(error))


# -- answers --


def follow(answer: Any, path: str) -> Any:
    """What lies at a dotted path (`data.0.score`) of parsed JSON; the empty path is the answer itself."""
    found = answer
    for step in path.split(".") if path else ():
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Unparsable(f"the answer must have {path!r}; there is no {step!r} in {describe(found)}") from None
    return found


def read_score(value: Any) -> float:
    """A finite number; neither a boolean nor a text that looks like one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number beyond a double
            if math.isfinite(value):
                return float(value)
    raise Unparsable(f"a score must be a finite number, got {describe(value)}")


def _report_usage(answer: Any) -> None:
    """Token counts as vLLM (`usage`) and SGLang (`meta_info`) tell them."""
    first = answer[0] if isinstance(answer, list) and answer else answer
    if not isinstance(first, Mapping):
        return
    for holder, key in (("usage", "total_tokens"), ("meta_info", "prompt_tokens")):
        told = first.get(holder)
        tokens = told.get(key) if isinstance(told, Mapping) else None
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0:
            report_usage(tokens=tokens)
            return


# -- requests --

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.]*)\}")
_FIELDS = ("prompt", "response", "ground_truth", "data_source", "messages", "group_id", "index", "step")


def check_template(template: Any) -> None:
    """Refuse placeholders that nothing fills, before anything is sent."""
    if isinstance(template, str):
        for match in _PLACEHOLDER.finditer(template):
            name = match[1]
            if name is not None and name not in _FIELDS and not name.startswith("extra_info."):
                raise InvalidInput(f"a placeholder must be one of {', '.join(_FIELDS)}, extra_info.key, got {{{name}}}")
    elif isinstance(template, Mapping):
        for item in template.values():
            check_template(item)
    elif isinstance(template, list | tuple):
        for item in template:
            check_template(item)


def fill(template: Any, rollout: Rollout) -> Any:
    """A template with its placeholders filled; what they are filled with is not looked at again."""
    if isinstance(template, str):
        return _fill_text(template, rollout)
    if isinstance(template, Mapping):
        return {key: fill(item, rollout) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, rollout) for item in template]
    return template


def fill_batch(template: Any, rollouts: Sequence[Rollout]) -> Any:
    """The same for a group: each text with a placeholder becomes a list, one entry per rollout."""
    if isinstance(template, str):
        has_placeholder = any(match[1] is not None for match in _PLACEHOLDER.finditer(template))
        filled = [_fill_text(template, rollout) for rollout in rollouts]
        return filled if has_placeholder else filled[0]
    if isinstance(template, Mapping):
        return {key: fill_batch(item, rollouts) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill_batch(item, rollouts) for item in template]
    return template


def _fill_text(template: str, rollout: Rollout) -> Any:
    whole = _PLACEHOLDER.fullmatch(template)
    if whole is not None and whole[1] is not None:
        return _value(whole[1], rollout)
    return _PLACEHOLDER.sub(lambda match: _as_text(_value(match[1], rollout)) if match[1] else match[0][0], template)


def _value(name: str, rollout: Rollout) -> Any:
    if name == "prompt":
        return prompt_text(rollout)
    if name == "messages":
        return [dict(message) for message in rollout.messages]
    if name in _FIELDS:
        return getattr(rollout, name)
    key = name.removeprefix("extra_info.")
    if key not in rollout.extra_info:
        raise InvalidInput(f"extra_info of every rollout must have {key!r}, which the request asks for")
    return rollout.extra_info[key]


def conversation(rollout: Rollout) -> list[dict[str, Any]]:
    """The messages that led to the response, and the response as the assistant's."""
    asked = [dict(message) for message in rollout.messages] or [{"role": "user", "content": rollout.prompt}]
    return [*asked, {"role": "assistant", "content": rollout.response}]


def prompt_text(rollout: Rollout) -> str:
    """The prompt, or what its messages say where only those are given."""
    if rollout.prompt:
        return rollout.prompt
    return "\n\n".join(_as_text(message.get("content", "")) for message in rollout.messages)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return (
        value if isinstance(value, str) else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    )


def _addresses(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    addresses = tuple(one.rstrip("/") for one in ((given,) if isinstance(given, str) else given))
    if not addresses:
        raise InvalidInput(f"{name} must be one or more http or https addresses, got none")
    check_addresses(name, addresses)
    return addresses
