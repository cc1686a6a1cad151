"""Turns what a reward returned into verdicts.

Always true: nothing here raises, whatever the reward returned, and no number is made up: a result without a finite
score becomes a failed reward that says what was returned and what is allowed.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from rewardflow.observe.redact import hide_in_reward, hide_secrets, redact
from rewardflow.reward.code.current_call import MAX_CALL_TOKENS, MAX_CALL_USD
from rewardflow.types import EMPTY, FAILURE_KINDS, UNDECIDED_KINDS, FailureKind, Reward, scored_reward

ALLOWED = "a finite number, (score, query, explanation), a mapping with 'score', or a Reward"
_MAX_REPR_CHARS = 200
_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


class _RedactedRepr(reprlib.Repr):
    """Removes secrets from a text before it shortens the text, because half a secret cannot be recognised."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(hide_secrets(x), level)

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = hide_secrets(repr(x))
        except Exception:  # raised by the user's own `__repr__`
            return super().repr_instance(x, level)
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[: half - 1]}...{text[-half:]}"


_short_repr = _RedactedRepr()
_short_repr.maxstring = _short_repr.maxother = _short_repr.maxlong = 160


def parse_result(result: Any) -> Reward:
    """Returns the verdict on one rollout."""
    if type(result) is float and math.isfinite(result):  # by far the most frequent case, so it skips all other checks
        return scored_reward(result)
    try:
        return hide_in_reward(_parse(result))
    except Exception as error:  # raised by the user's own mapping or sequence class
        return _failed(f"reading {describe(result)}, which the reward returned, raised {describe(error)}")


def parse_results(result: Any, count: int) -> tuple[Reward, ...]:
    """Returns the verdicts on a group of `count`, from the one result of a call about the whole group."""
    results = _as_sequence(result)
    if results is None:
        problem = _not_awaited(result) or f"the reward returned {describe(result)} for a group of {count}"
        return (_failed(f"{problem}; allowed: a list with one result per rollout, each {ALLOWED}"),) * count
    if len(results) != count:
        return (_failed(f"the reward returned {len(results)} results for a group of {count}"),) * count
    return tuple(parse_result(one) for one in results)


def scores_for_post_process(rewards: Sequence[Reward]) -> list[float]:
    """Returns a group's scores for `post_process_scores`, failed ones as NaN."""
    return [math.nan if reward.value is None else reward.value for reward in rewards]


def apply_post_process(rewards: Sequence[Reward], returned: Any) -> tuple[Reward, ...]:
    """Returns a complete group's rewards after its `post_process_scores` returned `returned`."""
    values = _as_sequence(returned)
    if values is None or len(values) != len(rewards):
        got = describe(returned) if values is None else f"{len(values)} values"
        problem = _not_awaited(returned, "post_process_scores") or f"post_process_scores returned {got}"
        reason = f"{problem} for a group of {len(rewards)}; allowed: a list with one number or None per rollout"
        return tuple(fail(reward, "user_error", reason) for reward in rewards)
    return tuple(_post_processed(reward, value) for reward, value in zip(rewards, values, strict=True))


def describe(value: Any) -> str:
    """Returns type and short repr, of bounded length even for a huge or hostile object."""
    try:
        text = _short_repr.repr(value)
    except Exception:  # raised by the user's own `__repr__`
        text = "(its repr raised)"
    if len(text) > _MAX_REPR_CHARS:
        text = f"{text[: _MAX_REPR_CHARS - 3]}..."
    return text if value is None else f"{type(value).__name__} {text}"


def _parse(result: Any) -> Reward:
    match result:
        case Reward():
            return _sanitized_copy(result)
        case Mapping():
            return _parse_mapping(result)
        case tuple() | list() if 1 <= len(result) <= 3:
            score, query, explanation = (*result, None, None)[:3]
            return _scored(score, result, query=_text(query), explanation=_text(explanation))
    return _scored(result, result)


def _scored(score: Any, result: Any, **rest: Any) -> Reward:
    """Returns a scored reward if `score` is a finite number, else a failed one; both keep the rest of the result."""
    value = _finite(score)
    if value is not None:
        return Reward(value=value, **rest)
    problem = _not_awaited(score)
    if problem is None:
        where = "" if score is result else f" as the score in {describe(result)}"
        problem = f"the reward returned {describe(score)}{where}"
    return _failed(f"{problem}; allowed: {ALLOWED}", **rest)


def _parse_mapping(result: Mapping[Any, Any]) -> Reward:
    """Reads a mapping. A known key with an unfit value stays in the extras, so that the score is not lost."""
    extras = {str(key): value for key, value in result.items()}
    known: dict[str, Any] = {key: _text(extras.pop(key)) for key in ("query", "explanation") if key in extras}
    if isinstance(extras.get("components"), Mapping):
        known["components"] = _components(extras.pop("components"))
    for key, convert, most in (("cost_usd", float, MAX_CALL_USD), ("tokens", int, MAX_CALL_TOKENS)):
        amount = _amount(extras.get(key), most)
        if amount is not None:
            known[key] = convert(amount)
            del extras[key]
    if "score" not in extras:
        message = f"the reward returned {describe(result)}, a mapping without 'score'; allowed: {ALLOWED}"
        return _failed(message, extras=extras, **known)
    return _scored(extras.pop("score"), result, extras=extras, **known)


def _finite(value: Any) -> float | None:
    """Returns the finite number in a plain, numpy or torch scalar, or None."""
    try:
        item = getattr(value, "item", None)  # numpy and torch; unlike float(), it also reads arrays of one element
        number = item() if callable(item) else value
        if not hasattr(number, "__float__"):  # float() would also read strings
            return None
        number = float(number)
    except Exception:  # several elements, too large for a double, or the user's own `__float__` raised
        return None
    return number if math.isfinite(number) else None


def _amount(value: Any, most: float) -> float | None:
    number = _finite(value)
    return None if number is None or not 0 <= number <= most else number


def _components(components: Mapping[Any, Any]) -> dict[str, float | None]:
    return {str(name): _finite(value) for name, value in components.items()}


def _as_sequence(value: Any) -> Sequence[Any] | None:
    """Returns lists, tuples, arrays, tensors and series as a sequence; None for text, mappings and generators."""
    if isinstance(value, list | tuple):
        return value
    try:
        if callable(tolist := getattr(value, "tolist", None)):
            value = tolist()
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            value = list(value)
    except Exception:  # raised by the user's own sequence class
        return None
    return value if isinstance(value, list) else None


def _text(value: Any) -> str | None:
    """Returns text as it is and other values as JSON: a query is often a list of messages, read from the journal."""
    if value is None or isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str, option=_JSON_OPTIONS).decode()
    except Exception:  # broken unicode, or the user's own `__str__` raised
        return describe(value)


def _sanitized_copy(reward: Reward) -> Reward:
    """Returns a copy whose fields have the right types, because users may return one object for many rollouts.

    Nobody checked the fields when the record was made. A field of a wrong type is left out, so that the score is not
    lost.
    """
    error = reward.error if reward.error is None or isinstance(reward.error, str) else describe(reward.error)
    return replace(
        reward,
        value=None if reward.value is None else float(reward.value),
        kind=reward.kind if reward.kind in FAILURE_KINDS else None,
        error=None if error is None else redact(error),
        imputed=bool(reward.imputed),
        components=_components(reward.components) if isinstance(reward.components, Mapping) else EMPTY,
        extras={str(key): one for key, one in reward.extras.items()} if isinstance(reward.extras, Mapping) else EMPTY,
        query=_text(reward.query),
        explanation=_text(reward.explanation),
        cost_usd=_amount(reward.cost_usd, MAX_CALL_USD) or 0.0,
        tokens=int(_amount(reward.tokens, MAX_CALL_TOKENS) or 0),
        cached=bool(reward.cached),
    )


def _not_awaited(value: Any, who: str = "the reward") -> str | None:
    if not inspect.isawaitable(value):
        return None
    if inspect.iscoroutine(value):
        with contextlib.suppress(RuntimeError, ValueError):  # it runs already, or refuses to end: we cannot stop it
            value.close()  # otherwise Python warns that it was never awaited
        return f"{who} returned a coroutine: declare it with async def"
    return f"{who} returned an awaitable {type(value).__name__}: declare it with async def"


def _post_processed(reward: Reward, returned: Any) -> Reward:
    value = _finite(returned)
    if value is None:
        if reward.value is None:
            return reward
        shown = returned if isinstance(returned, float) or returned is None else describe(returned)
        return fail(reward, "unparsable", f"post_process_scores returned {shown}")
    if reward.kind in UNDECIDED_KINDS:
        return reward  # nobody judged the rollout, so there is no verdict to replace by a number
    if reward.value is None:  # `kind` and `error` stay: they say which failure the user's number replaces
        return replace(reward, value=value, status="scored", imputed=True)
    return reward if reward.value == value else replace(reward, value=value)


def fail(reward: Reward, kind: FailureKind, error: str) -> Reward:
    """Returns the reward as a failed one; its cost, tokens and query stay."""
    return replace(reward, value=None, status="failed", kind=kind, error=redact(error), imputed=False)


def _failed(error: str, **rest: Any) -> Reward:
    return Reward(kind="unparsable", error=redact(error), **rest)
