"""The protocols that trainers speak: OpenRLHF's remote reward, slime's and miles', and NeMo Gym's resources server.

Always true: these requests have no ids, so they are known by their job and content: a repeat joins the call in flight
or gets the settled verdict, a failure too. A protocol without a word for "failed" gets an error status, never a number.
The answer to a request about several responses is whole, or an error that says how many failed.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.canonical import canonical
from rewardflow.serve.http_json import error_answer, failure_answer, json_answer
from rewardflow.serve.own_protocol import MAX_ROLLOUTS
from rewardflow.serve.repeatable_requests import RepeatableRequests
from rewardflow.serve.settings import ServedJob
from rewardflow.types import EMPTY, Reward, Rollout

if TYPE_CHECKING:
    from aiohttp import web

_TRUTHS: Final = ("expected_answer", "ground_truth", "label", "answer")  # where data for NeMo Gym has the reference
_TASK: Final = "_ng_task_index"
_FAILED: Final = "_ng_failure_class"
_FAILED_WHY: Final = "_ng_failure_judge_error"
_MASKED: Final = "mask_sample"
_CONFIG: Final = "instance_config"
_FAILURE_WORDS: Final = (_FAILED, _FAILED_WHY, _MASKED, "failure_kind", "failure_reason")
_OWN_PREFIX: Final = "_ng_"  # NeMo Gym's own bookkeeping, which differs from one rollout to the next


@dataclass(frozen=True, slots=True)
class TrainerRequest:
    """Who asks, and when the calls are due: the step of the request's header, if it has one."""

    job: ServedJob
    due_step: int | None = None


class Trainers:
    """Answers the requests of trainers."""

    def __init__(self, requests: RepeatableRequests) -> None:
        self._requests = requests

    # -- OpenRLHF ----------------------------------------------------------------------------------------------------

    async def openrlhf(self, body: Any, asked: TrainerRequest) -> web.Response:
        """Takes {query: [...], prompts: [...], labels: [...]}; a query is its prompt and response in one text.

        With several addresses OpenRLHF sends each one its part of the queries, and the later ones often an empty one.
        """
        queries = _texts(body, "query")
        prompts = _column(body, "prompts", len(queries))
        labels = _column(body, "labels", len(queries))
        rollouts = [
            content_rollout(prompt=prompt or "", response=_without_prompt(query, prompt), ground_truth=label)
            for query, prompt, label in zip(queries, prompts, labels, strict=True)
        ]
        rewards = await self._judge(rollouts, asked) if rollouts else []
        if (failure := _failure(rewards)) is not None:
            return failure
        values = [reward.value for reward in rewards]
        return json_answer({"rewards": values, "scores": values, "extra_logs": _logs(rewards)})

    # -- slime and miles ---------------------------------------------------------------------------------------------

    async def slime(self, body: Any, asked: TrainerRequest, key: str | None) -> web.Response:
        """Takes {prompt, response, label}; answers the number, or with `key` an object for `--reward-key`."""
        if not isinstance(body, Mapping) or not isinstance(body.get("response"), str):
            raise InvalidInput(f"the body must be an object with a text `response`, got {body!r:.100}")
        prompt = body.get("prompt") or ""
        messages = prompt if isinstance(prompt, list) else ()
        rollout = content_rollout(
            prompt="" if messages else str(prompt),
            messages=_messages(messages),
            response=body["response"],
            ground_truth=body.get("label"),
            data_source=str(body.get("data_source") or ""),
        )
        (reward,) = await self._judge([rollout], asked)
        if reward.value is None:
            return failure_answer(reward)
        return json_answer(reward.value if key is None else {**reward.components, key: reward.value})

    # -- NeMo Gym ----------------------------------------------------------------------------------------------------

    async def verify(self, body: Any, asked: TrainerRequest, *, fails_as_row: bool) -> web.Response:
        """Takes what NeMo Gym's agents send after a rollout, and answers the same with `reward`.

        `fails_as_row` answers a failure as NeMo Gym's own servers do: a row with reward 0 that says `judge_failed`.
        Its rollout collection leaves such rows out, and NeMo RL masks them; another trainer would train on the 0.
        """
        if not isinstance(body, Mapping) or not isinstance(body.get("response"), Mapping):
            raise InvalidInput(
                f"the body must be an object with `responses_create_params` and `response`, got {body!r:.100}"
            )
        body = _without_failure(body)
        params = body.get("responses_create_params")
        asked_for = params.get("input") if isinstance(params, Mapping) else None
        extras = {
            name: value
            for name, value in body.items()
            if name not in ("responses_create_params", "response") and not name.startswith(_OWN_PREFIX)
        }
        rollout = content_rollout(
            prompt=asked_for if isinstance(asked_for, str) else "",
            messages=_messages(asked_for) if isinstance(asked_for, list) else (),
            response=_final_text(body["response"]),
            ground_truth=next((extras[name] for name in _TRUTHS if name in extras), None),
            extra_info=extras,
        )
        (reward,) = await self._judge([rollout], asked)
        if reward.value is not None:
            return json_answer(
                {**body, **{f"reward/{k}": v for k, v in reward.components.items()}, "reward": reward.value}
            )
        if not fails_as_row:
            return failure_answer(reward)
        return json_answer({**body, "reward": 0.0, **_words_for_failure(reward, body.get(_CONFIG))})

    def aggregate_metrics(self, body: Any) -> web.Response:
        """Answers what NeMo Gym asks for at the end: the mean, spread and extremes of rewards, by task and in all.

        Rows that say that they were not judged are left out.
        """
        rows = body.get("verify_responses") if isinstance(body, Mapping) else None
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise InvalidInput("verify_responses must be a list of objects")
        by_task: defaultdict[Any, list[float]] = defaultdict(list)
        for row in rows:
            was_judged = _FAILED not in row and not row.get(_MASKED)
            is_judged = was_judged and isinstance(row.get("reward"), int | float)
            if is_judged and isinstance(row.get(_TASK, 0), int):
                by_task[row.get(_TASK, 0)].append(float(row["reward"]))
        overall = _figures([value for values in by_task.values() for value in values])
        return json_answer(
            {
                "group_level_metrics": [{_TASK: task, **_figures(by_task[task])} for task in sorted(by_task)],
                "agent_metrics": overall,
                "key_metrics": {name: value for name, value in overall.items() if name.startswith("mean/")},
            }
        )

    async def _judge(self, rollouts: Sequence[Rollout], asked: TrainerRequest) -> list[Reward]:
        await self._requests.require_single_rollouts()
        futures = await self._requests.ask(asked.job, rollouts, due_step=asked.due_step, is_batch=True)
        return [await asyncio.shield(future) for future in futures]


def content_rollout(
    *,
    response: str,
    prompt: str = "",
    messages: Sequence[Mapping[str, Any]] = (),
    ground_truth: Any = None,
    data_source: str = "",
    extra_info: Mapping[str, Any] = EMPTY,
) -> Rollout:
    """Makes a rollout that is known by its content alone."""
    content = canonical([prompt, list(messages), response, ground_truth, data_source, dict(extra_info)])
    return Rollout(
        group_id="content-" + hashlib.blake2b(content, digest_size=16).hexdigest(),
        prompt=prompt,
        messages=messages,
        response=response,
        ground_truth=ground_truth,
        data_source=data_source,
        extra_info=extra_info,
    )


def _texts(body: Any, name: str) -> list[str]:
    value = body.get(name) if isinstance(body, Mapping) else None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{name} must be a text or a list of texts, got {value!r:.100}")
    if len(texts) > MAX_ROLLOUTS:
        raise InvalidInput(f"{name} must hold at most {MAX_ROLLOUTS:,} texts, got {len(texts):,}")
    return texts


def _column(body: Mapping[str, Any], name: str, count: int) -> list[Any]:
    """Returns the values beside the queries; none if the request has no such column."""
    value = body.get(name)
    if value is None:
        return [None] * count
    values = value if isinstance(value, list) else [value]
    if len(values) != count:
        raise InvalidInput(f"{name} must have one value for each query, got {len(values)} for {count}")
    if name == "prompts" and not all(one is None or isinstance(one, str) for one in values):
        raise InvalidInput(f"prompts must be texts, got {values!r:.100}")
    return values


def _without_prompt(query: str, prompt: str | None) -> str:
    """Returns the response: the query without its prompt, or all of it if a chat template has changed the prompt."""
    return query.removeprefix(prompt) if prompt else query


def _failure(rewards: Sequence[Reward]) -> web.Response | None:
    failed = [reward for reward in rewards if reward.value is None]
    if not failed:
        return None
    if len(rewards) == 1:
        return failure_answer(failed[0])
    kinds = ", ".join(sorted({str(reward.kind) for reward in failed}))
    message = f"{len(failed)} of {len(rewards)} responses were not judged ({kinds}); the first: {failed[0].error}"
    return error_answer(failure_answer(failed[0]).status, message, failed[0].kind or "user_error")


def _logs(rewards: Sequence[Reward]) -> dict[str, list[float | None]]:
    """Returns the components that every verdict has, for OpenRLHF's logs."""
    if not rewards:
        return {}
    names = set.intersection(*({*reward.components} for reward in rewards))
    return {name: [reward.components[name] for reward in rewards] for name in sorted(names)}


def _messages(items: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    if not all(isinstance(item, Mapping) for item in items):
        raise InvalidInput(f"messages must be objects, got {items!r:.100}")
    return tuple({"role": item.get("role", "user"), "content": _text_of(item.get("content"))} for item in items)


def _text_of(content: Any) -> str:
    """Returns a message's text; parts are joined, and what is no text is left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _final_text(response: Mapping[str, Any]) -> str:
    """Returns the text of the response's last message of the assistant; empty if there is none."""
    output = response.get("output")
    for item in reversed(output if isinstance(output, list) else []):
        is_message = isinstance(item, Mapping) and item.get("type", "message") == "message"
        if is_message and item.get("role", "assistant") == "assistant":
            return _text_of(item.get("content"))
    return ""


def _without_failure(row: Mapping[str, Any]) -> dict[str, Any]:
    """Removes what an earlier verification of this row wrote for a failure (`_words_for_failure`)."""
    row = {name: value for name, value in row.items() if name not in _FAILURE_WORDS}
    config = row.get(_CONFIG)
    if isinstance(config, Mapping) and _MASKED in config:
        row[_CONFIG] = {name: value for name, value in config.items() if name != _MASKED}
        if not row[_CONFIG]:  # the failure made it
            del row[_CONFIG]
    return row


def _words_for_failure(reward: Reward, instance_config: Any) -> dict[str, Any]:
    """Returns what NeMo Gym's own servers write into the row of a failure: for its collection, and for NeMo RL.

    Its collection reads the class; NeMo RL the mask, which earlier releases look for in `instance_config`.
    """
    error = f"{reward.kind}: {reward.error}"
    config = instance_config if isinstance(instance_config, Mapping) else {}
    return {
        _MASKED: True,
        "failure_kind": "judge_failed",
        "failure_reason": error,
        _CONFIG: {**config, _MASKED: True},
        _FAILED: "judge_failed",
        _FAILED_WHY: error,
    }


def _figures(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "mean/reward": statistics.fmean(values),
        "max/reward": max(values),
        "min/reward": min(values),
        "median/reward": statistics.median(values),
        "std/reward": statistics.stdev(values) if len(values) > 1 else 0.0,
    }
