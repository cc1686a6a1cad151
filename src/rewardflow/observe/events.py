"""Defines events: records of what happened. Reports, metrics and dashboards read this one stream.

Always true: a record is frozen, carries `at_s` on the run's clock, and survives `from_json(to_json(event))`; `to_json`
returns only JSON types, whatever values a record holds.

To add a kind of event, add a class here: it registers itself under its name, or under `written_as` if it has another
name on disk. Within a schema version, fields may be added, with a default; removing a field or changing its meaning
needs a new version.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from rewardflow.errors import InvalidInput
from rewardflow.observe.nesting import MAX_DEPTH
from rewardflow.types import EMPTY, FailureKind, Reward, Status

SCHEMA_VERSION = 1
REWARD_SOURCE = "reward"  # the source whose totals a call counts in, unless its caller names another

E = TypeVar("E", bound="Event")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at `at_s`, in seconds on the run's clock."""

    at_s: float

    by_name: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        # The decorator of a slotted dataclass builds the class a second time; hence the last one of a module wins.
        name = name_on_disk(cls)
        known = Event.by_name.get(name)
        if known is not None and known.__module__ != cls.__module__:
            raise InvalidInput(f"the name of an event must be its own, got {name} from {cls.__module__}")
        Event.by_name[name] = cls


def name_on_disk(event: type[Event]) -> str:
    """Returns the class's name, or the older name that files already use."""
    return str(vars(event).get("written_as", event.__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded(Event):
    """One attempt at one call ended. It was paid for, whatever its outcome."""

    step: int
    group_id: str
    index: int
    reward: str
    attempt: int
    endpoint: str | None = None
    started_s: float
    latency_s: float
    outcome: str  # "scored" or a failure kind
    cost_usd: float = 0.0
    tokens: int = 0
    is_hedge: bool = False
    source: str = REWARD_SOURCE
    cached_tokens: int = 0  # of `tokens`, those that the service took from its cache of prompts
    cache_saved_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReached(Event):
    """The one verdict on one rollout, sent when its group is complete. `waited_s` is its time in the queue."""

    step: int
    group_id: str
    index: int
    status: Status
    value: float | None = None
    kind: FailureKind | None = None
    error: str | None = None
    attempts: int = 0
    latency_s: float = 0.0
    waited_s: float = 0.0
    cost_usd: float = 0.0
    tokens: int = 0
    cached: bool = False
    imputed: bool = False
    components: Mapping[str, float | None] = EMPTY
    source: str = REWARD_SOURCE

    @classmethod
    def of(
        cls,
        reward: Reward,
        *,
        step: int,
        group_id: str,
        index: int,
        at_s: float,
        waited_s: float,
        source: str = REWARD_SOURCE,
    ) -> Self:
        return cls(
            at_s=at_s,
            step=step,
            group_id=group_id,
            index=index,
            status=reward.status,
            value=reward.value,
            kind=reward.kind,
            error=reward.error,
            attempts=reward.attempts,
            latency_s=reward.latency_s,
            waited_s=waited_s,
            cost_usd=reward.cost_usd,
            tokens=reward.tokens,
            cached=reward.cached,
            imputed=reward.imputed,
            components=reward.components,
            source=source,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDelivered(Event):
    """All verdicts of a group had arrived, and the caller got the group."""

    step: int
    group_id: str
    num_rollouts: int
    num_failed: int
    first_submitted_s: float
    source: str = REWARD_SOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChanged(Event):
    """A learnt limit changed. `value`: requests a minute (pace) or calls (concurrency); `reason`: how a call ended."""

    account: str
    governor: Literal["pace", "concurrency"]
    value: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChanged(Event):
    """An endpoint's breaker is now `open` or `closed`."""

    account: str
    endpoint: str | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageChanged(Event):
    """Calls that cannot start began to wait (`began`), or no longer wait (`over`)."""

    account: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLoad(Event):
    """The queue and the limits of an account at this moment; written every few seconds while calls go on.

    `limit` is the number of calls at once, `rpm` the requests a minute (None: no limit known), and `broken` the number
    of endpoints that get no calls because they failed.
    """

    account: str
    in_flight: int
    waiting: int
    limit: int
    rpm: float | None = None
    broken: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAbandoned(Event):
    """A call timed out in a thread that cannot be stopped; `num_abandoned` counts the threads that are stuck now."""

    reward: str
    num_abandoned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOpened(Event):
    """An agent opened: a session and its clock start. `settings` holds no secrets.

    `unix_s` is the wall clock at `at_s`; it gives the other events of the session their time of day.
    """

    unix_s: float = 0.0
    rewards: Sequence[str]
    settings: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnded(Event):
    """An agent closed: its session ended, with these statistics."""

    written_as: ClassVar = "AgentClosed"

    statistics: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWorked(Event):
    """One piece of work (`generate`, `validate`, `update`, ...) held a device until `at_s`."""

    device: str
    work: str
    step: int
    started_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdled(Event):
    """A device was idle until `at_s`. `cause`: it waited for `reward`, `generation`, a `checkpoint`, or `other`."""

    device: str
    cause: str
    started_s: float


class EventSink(Protocol):
    """Receives events."""

    def emit(self, event: Event) -> None:
        """Never blocks, never raises. The event must not change afterwards: it may be encoded later, elsewhere."""


class EventRelay:
    """A sink that passes events on to other sinks, which may be added at any time."""

    def __init__(self) -> None:
        self._sinks: list[EventSink] = []

    def add(self, sink: EventSink) -> None:
        self._sinks.append(sink)

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)


class EventList:
    """A sink in memory, for tests and notebooks."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """Returns the events of one kind, in the order they came."""
        return [event for event in self.events if isinstance(event, kind)]

    def counts(self) -> Counter[str]:
        return Counter(name_on_disk(type(event)) for event in self.events)


def to_json(event: Event) -> dict[str, Any]:
    """Returns `{"v": 1, "event": "CallEnded", "at_s": ..., ...}`, which any JSON encoder can write."""
    data: dict[str, Any] = {"v": SCHEMA_VERSION, "event": name_on_disk(type(event))}
    for name in _fields(type(event)):
        data[name] = plain(getattr(event, name))
    return data


def from_json(data: Mapping[str, Any]) -> Event:
    """Returns the record. Ignores fields that a later rewardflow added within the version."""
    version, name = data.get("v"), data.get("event")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise InvalidInput(f"an event must have a schema version of 1 to {SCHEMA_VERSION}, got v={version!r}")
    kind = Event.by_name.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidInput(f"an event must be one of {', '.join(Event.by_name)}, got event={name!r}")
    fields = _fields(kind)
    known: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key in fields
    }
    missing = [key for key, is_required in fields.items() if is_required and key not in known]
    if missing:
        raise InvalidInput(f"a {name} needs every field without a default, got none for {', '.join(missing)}")
    return kind(**known)


_TOO_DEEP = f"(nested more than {MAX_DEPTH} deep)"
_ALREADY_PLAIN = frozenset({type(None), bool, int, str})  # nearly every value; checking the other types is slow


def plain(value: Any, _depth: int = 0) -> Any:
    """Returns the value in JSON's own types: NaN and infinity become None, and objects unknown to JSON their text.

    A note replaces lists and objects below `MAX_DEPTH` levels.
    """
    if type(value) in _ALREADY_PLAIN or isinstance(value, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return plain(float(value))
    if isinstance(value, Mapping):
        if _depth >= MAX_DEPTH:
            return _TOO_DEEP
        return {key if isinstance(key, str) else str(key): plain(item, _depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return _TOO_DEEP if _depth >= MAX_DEPTH else [plain(item, _depth + 1) for item in value]
    return str(value)


_FIELDS: dict[type[Event], dict[str, bool]] = {}


def _fields(kind: type[Event]) -> dict[str, bool]:
    """Returns the names of a record's fields, and whether each is required. Cached, because every event needs them."""
    fields = _FIELDS.get(kind)
    if fields is None:
        required = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(kind)}
        fields = _FIELDS[kind] = required
    return fields
