"""Loads a reward: decides how to call it, how to read its results, and which hooks it has.

Always true: a `LoadedReward` can be called with the keywords that `arguments` returns; loading refuses a signature that
asks for more. Parameters are filled by name, so a reward takes only what it needs. Where `is_async` is true, calling
the function returns a coroutine. What reward code writes into dicts, lists and arrays that it gets changes no record.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.reward.code.late_answers import LateAnswers
from rewardflow.reward.code.results import parse_result, parse_results
from rewardflow.reward.code.source import FoundReward, RewardSource, scoring_function
from rewardflow.reward.code.user_frames import place_of_code
from rewardflow.types import Reward, Rollout

Unit = Literal["rollout", "group"]
Fill = Callable[[Any], Any]  # makes one argument from a rollout, or from a group's rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedReward:
    """A reward that is ready to be called: `parse(function(**arguments(rollouts)), len(rollouts))`.

    A hook that the reward lacks is None. Hooks may return an awaitable.
    """

    name: str
    identity: str
    unit: Unit
    is_async: bool
    function: Callable[..., Any]
    post_process: Callable[..., Any] | None
    log: Callable[..., Any] | None
    log_verdicts: Callable[..., Any] | None
    close: Callable[[], Any] | None
    estimate_tokens: Callable[[Rollout], int] | None
    cost_bound_usd: Callable[[Rollout], float | None] | None  # the most that a call can cost, or None if not known
    decide_locally: Callable[[Rollout], Any] | None  # a verdict without a call, or None; never async
    decides_quickly: bool  # `decide_locally` may run on the loop
    check: Callable[[], Any] | None  # called when the agent opens, to find what is missing before anything is sent
    price_problem: Callable[[], str | None] | None  # why the cost of a call is unknown, or None
    endpoints: tuple[str, ...]  # the reward's own endpoints; the agent spreads its calls over them
    max_at_once: int | None  # more calls at once than this would only wait inside the reward
    late_answers: LateAnswers | None  # of a reward whose answers come hours later
    defined_at: str  # `file.py, line 12, in compute_score`
    fills: tuple[tuple[str, Fill], ...] = field(repr=False)
    call_kwargs: Mapping[str, Any] = field(repr=False)

    def arguments(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Returns the keywords for one call: about one rollout, or about the whole group if that is the unit."""
        subject = rollouts[0] if self.unit == "rollout" else rollouts
        arguments = {name: fill(subject) for name, fill in self.fills}
        if self.call_kwargs:
            arguments.update(self.call_kwargs)
        return arguments

    def parse(self, result: Any, count: int) -> tuple[Reward, ...]:
        """Returns one reward per rollout of the call. Never raises: an unreadable result becomes a failed reward."""
        return (parse_result(result),) if self.unit == "rollout" else parse_results(result, count)

    @property
    def logs(self) -> bool:
        return self.log is not None or self.log_verdicts is not None


def load_reward(source: RewardSource) -> LoadedReward:
    """Imports, builds and checks a reward; raises `RewardLoadError` for everything that can be wrong with it."""
    found = source.find()
    scoring = scoring_function(found.target)
    if scoring is None:
        raise RewardLoadError(
            f"a class used as a reward must have score_group, compute_score or __call__, {source.name} has none"
        )
    if any(inspect.isasyncgenfunction(f) or inspect.isgeneratorfunction(f) for f in (scoring, type(scoring).__call__)):
        raise RewardLoadError(f"a reward must return its result, {source.name} is a generator and yields it")
    plan = _plan(scoring, found, source.name)
    function = _by_position(scoring, plan.positional) if plan.positional else scoring
    is_async = is_coroutine_function(scoring)
    target = found.target
    return LoadedReward(
        name=source.name,
        identity=found.identity,
        unit=plan.unit,
        is_async=is_async,
        function=_as_coroutine_function(function) if is_async else function,
        post_process=_hook(target, source.name, "post_process_scores", "scores"),
        log=_hook(target, source.name, "log", "timestamps", "queries", "results", "latencies", "group_uids"),
        log_verdicts=_hook(target, source.name, "log_verdicts", "verdicts"),
        close=_hook(target, source.name, "aclose") or _hook(target, source.name, "close"),
        estimate_tokens=_hook(target, source.name, "estimate_tokens", "rollout"),
        cost_bound_usd=_hook(target, source.name, "cost_bound_usd", "rollout"),
        decide_locally=_decide_locally(target, source.name, plan.unit),
        decides_quickly=bool(getattr(target, "decides_quickly", False)),
        check=_hook(target, source.name, "check"),
        price_problem=_hook(target, source.name, "price_problem"),
        endpoints=_endpoints(target, source.name),
        max_at_once=_max_at_once(target, source.name),
        late_answers=_late_answers(target),
        defined_at=place_of_code(scoring),
        fills=plan.fills,
        call_kwargs=found.call_kwargs,
    )


def _endpoints(target: Any, name: str) -> tuple[str, ...]:
    """Returns the reward's own `endpoints`, if it has that attribute."""
    endpoints = getattr(target, "endpoints", None) or ()
    if isinstance(endpoints, str) or not all(isinstance(endpoint, str) for endpoint in endpoints):
        raise RewardLoadError(f"endpoints of {name} must be a sequence of texts, got {endpoints!r}")
    return tuple(endpoints)


def _max_at_once(target: Any, name: str) -> int | None:
    """Returns the reward's own `max_at_once`, if it has that attribute."""
    limit = getattr(target, "max_at_once", None)
    if type(limit) is not int:
        return None  # an attribute for another purpose
    if limit < 1:
        raise RewardLoadError(f"max_at_once of {name} must be at least 1, got {limit}")
    return limit


def _late_answers(target: Any) -> LateAnswers | None:
    answers = getattr(target, "late_answers", None)
    return answers if isinstance(answers, LateAnswers) else None


def _decide_locally(target: Any, name: str, unit: Unit) -> Callable[[Rollout], Any] | None:
    hook = _hook(target, name, "decide_locally", "rollout")
    if hook is None:
        return None
    if is_coroutine_function(hook):
        raise RewardLoadError(f"decide_locally must be a plain function, that of {name} is async; wait in the call")
    if unit == "group":
        raise RewardLoadError(f"decide_locally is for rewards that score one rollout, and {name} scores whole groups")
    return hook


def is_coroutine_function(function: Any) -> bool:
    """Recognises async functions, also behind partials, methods, callable objects and `functools.wraps` decorators."""
    while not inspect.iscoroutinefunction(function):
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isroutine(function) or isinstance(function, type):
            return False
        else:
            function = type(function).__call__
    return True


# -- the parameters that a reward may ask for --


def with_own_values(rollout: Rollout) -> Rollout:
    """Returns the rollout for one call of reward code, which may write into its values.

    Copies dicts, lists, sets and numpy arrays in `extra_info`, `ground_truth` and `messages`, so that the record, other
    calls and other rewards do not change; returns a rollout of texts and numbers as it is. Tensors, images and other
    objects stay shared, as do tokens and log-probs: copying them could be slow, or impossible.
    """
    info, truth, messages = rollout.extra_info, rollout.ground_truth, rollout.messages
    has_own_info = False
    if info:
        for value in info.values():
            if type(value) not in _FLAT_TYPES:
                has_own_info = True
                break
    has_own_truth = type(truth) not in _FLAT_TYPES
    if not (has_own_info or has_own_truth or messages):
        return rollout
    made: Rollout = object.__new__(Rollout)  # `dataclasses.replace` would check all fields again, for each call
    for name in _FIELDS:
        _put(made, name, getattr(rollout, name))
    if has_own_info:
        _put(made, "extra_info", _own("extra_info", dict(info)))
    if has_own_truth:
        _put(made, "ground_truth", _own("ground_truth", truth))
    if messages:
        _put(made, "messages", _own("messages", messages))
    return made


_FIELDS = tuple(one.name for one in fields(Rollout))
_FLAT_TYPES = frozenset({str, int, float, bool, bytes, type(None)})
_put = object.__setattr__


def _own(name: str, value: Any) -> Any:
    try:
        return _copied(value)
    except RecursionError:
        raise InvalidInput(f"{name} must be nested a few hundred levels deep at most, got more") from None


def _copied(value: Any) -> Any:
    """Copies nested mappings, lists, tuples, sets and arrays; keeps their classes where copying them is simple."""
    kind = type(value)
    if kind in _FLAT_TYPES:
        return value
    if kind is dict or kind is MappingProxyType:
        return kind({key: one if type(one) in _FLAT_TYPES else _copied(one) for key, one in value.items()})
    if kind is list or kind is tuple:
        return kind([one if type(one) in _FLAT_TYPES else _copied(one) for one in value])
    if isinstance(value, dict):  # OrderedDict, defaultdict and the like
        mapping = copy.copy(value)
        mapping.update({key: _copied(one) for key, one in value.items()})
        return mapping
    if isinstance(value, list):
        sequence = copy.copy(value)
        sequence[:] = [_copied(one) for one in value]
        return sequence
    return _copied_array(value) if _is_array(value) else copy.copy(value) if isinstance(value, _MUTABLE) else value


_MUTABLE = (set, bytearray)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # a value can be an array only if somebody has imported numpy
    return numpy is not None and isinstance(value, numpy.ndarray)


def _copied_array(array: Any) -> Any:
    """Copies an array. Arrays of objects are what parquet files make of nested lists, so these are copied inside."""
    copied = array.copy()
    if copied.dtype == object and copied.ndim:
        for place in sys.modules["numpy"].ndindex(copied.shape):
            copied[place] = _copied(copied[place])
    return copied


def _extra_info(rollout: Rollout) -> dict[str, Any]:
    """Returns a new dict for each call; its nested values are those of `with_own_values`."""
    info = dict(rollout.extra_info) if rollout.extra_info else {}
    info["group_uid"] = rollout.group_id
    info["group_size"] = rollout.group_size
    return info


def _itself(rollout: Rollout) -> Rollout:
    return rollout


def _each(fill: Fill) -> Fill:
    return lambda rollouts: [fill(rollout) for rollout in rollouts]


_VERL: dict[str, Fill] = {
    "data_source": attrgetter("data_source"),
    "solution_str": attrgetter("response"),
    "ground_truth": attrgetter("ground_truth"),
    "extra_info": _extra_info,
}
_OWN_NAMES = ("prompt", "messages", "response")
_FOR_ROLLOUT: dict[str, Fill] = {**_VERL, "rollout": _itself, **{name: attrgetter(name) for name in _OWN_NAMES}}
_FOR_GROUP: dict[str, Fill] = {**{f"{name}s": _each(fill) for name, fill in _VERL.items()}, "rollouts": tuple}
_POSITIONS: dict[Unit, tuple[str, ...]] = {"rollout": tuple(_VERL), "group": tuple(f"{name}s" for name in _VERL)}


# -- fitting a signature --


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments that every call of a reward gets."""

    unit: Unit
    fills: tuple[tuple[str, Fill], ...]
    positional: tuple[str, ...]  # the names in `fills` that go to positional-only parameters, in order


def _plan(scoring: Callable[..., Any], found: FoundReward, name: str) -> _Plan:
    """Decides once which arguments every call will pass."""
    parameters = _parameters(scoring, name)
    sees_group = scoring == getattr(found.target, "score_group", None)
    asks_for_group = any(p.name in _FOR_GROUP for p in parameters)
    unit: Unit = "group" if sees_group or asks_for_group else "rollout"
    supply = dict(_FOR_GROUP if unit == "group" else _FOR_ROLLOUT)
    if sees_group and parameters and not asks_for_group:
        supply[parameters[0].name] = tuple  # score_group(self, group): a parameter of any name gets the rollouts
    positional = _positional(parameters, supply, unit, name)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    _check_call_kwargs(found.call_kwargs, [p.name for p in named], takes_any, supply, name)

    wanted = [p.name for p in named if p.name in supply and p.name not in found.call_kwargs and not _has_own_value(p)]
    unfilled = [
        p.name for p in named if p.default is p.empty and p.name not in wanted and p.name not in found.call_kwargs
    ]
    if takes_any:
        wanted += [one for one in _POSITIONS[unit] if one not in wanted and one not in positional]
    if unfilled or not (wanted or positional):
        problem = f"nothing fills {', '.join(unfilled)}" if unfilled else "it asks for none of them"
        raise RewardLoadError(
            f"{name} must ask for parameters that are supplied ({', '.join(supply)}) or are in reward_kwargs "
            f"({', '.join(found.call_kwargs) or 'none given'}); {problem}"
        )
    return _Plan(unit, tuple((one, supply[one]) for one in (*positional, *wanted)), positional)


def _parameters(scoring: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(scoring).parameters.values())
    except (TypeError, ValueError) as error:
        raise RewardLoadError(
            f"a reward's parameters must be readable, those of {name} are not; wrap it in a function"
        ) from error


def _positional(
    parameters: list[inspect.Parameter], supply: Mapping[str, Fill], unit: Unit, name: str
) -> tuple[str, ...]:
    """Returns the arguments for positional-only parameters: by known name, or else by place in verl's order."""
    order = _POSITIONS[unit]
    chosen: list[str] = []
    for place, p in enumerate(p for p in parameters if p.kind is p.POSITIONAL_ONLY):
        if p.name in supply or place < len(order):
            chosen.append(p.name if p.name in supply else order[place])
        elif p.default is p.empty:
            raise RewardLoadError(f"{name} must take at most {', '.join(order)} by position; nothing fills {p.name}")
    if len(set(chosen)) != len(chosen):
        raise RewardLoadError(f"positional-only parameters of {name} must be in the order {', '.join(order)}")
    return tuple(chosen)


def _has_own_value(parameter: inspect.Parameter) -> bool:
    """Whether a default is the user's own: `prompt="Rate this: ..."` in a file for verl does not ask for our prompt."""
    return parameter.name in _OWN_NAMES and parameter.default not in (parameter.empty, None, "", ())


def _check_call_kwargs(
    kwargs: Mapping[str, Any], named: list[str], takes_any: bool, supply: Mapping[str, Fill], name: str
) -> None:
    unknown = [] if takes_any else [key for key in kwargs if key not in named]
    if unknown:
        raise RewardLoadError(
            f"reward_kwargs must be parameters of {name} ({', '.join(named) or 'none'}), got {', '.join(unknown)}"
        )
    taken = [key for key in kwargs if key in supply and key not in _OWN_NAMES]
    if taken:
        raise RewardLoadError(
            f"reward_kwargs of {name} must not set what is supplied with every call: {', '.join(taken)}"
        )


def _by_position(function: Callable[..., Any], positional: tuple[str, ...]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        return function(*[arguments.pop(name) for name in positional], **arguments)

    return call


def _as_coroutine_function(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Makes a function return a coroutine always: a decorator may answer without one, for example from a cache."""
    if inspect.iscoroutinefunction(function):
        return function

    async def call(**arguments: Any) -> Any:
        result = function(**arguments)
        return await result if inspect.isawaitable(result) else result

    return call


# -- hooks --


def _hook(target: Any, name: str, method: str, *takes: str) -> Callable[..., Any] | None:
    """Returns a hook, or None. Refuses one with a wrong signature now, not after the first batch was paid for."""
    hook: object = getattr(target, method, None)
    if not callable(hook):  # `self.log` is often a logger
        return None
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # written in C: its signature is unknown until it is called
        return hook
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise RewardLoadError(
            f"{method} of {name} must take ({', '.join(takes)}), got {method}{signature}; "
            f"rename it if it is not meant to be called by the agent"
        ) from error
    return hook
