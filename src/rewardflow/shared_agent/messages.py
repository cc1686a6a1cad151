"""The messages between a client and the host of a shared agent.

A client sends `Hello`, `Post`, `Take`, `Bye` or `AskStatistics`, over Ray or HTTP, and the host answers each.
Always true: a message may arrive twice and takes effect once: a client's requests have serial numbers, and the host
keeps a delivery until the client has confirmed it. Rollouts and rewards are sent as plain tuples, which take a tenth of
the time of a record to pack. A rollout's tokens and log-probs are sent only if the client sets `sends_tokens`. A client
speaks for itself with its secret; its id, which statistics show, is a digest of the secret and does not tell it.
"""

from __future__ import annotations

import hashlib
import operator
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from rewardflow.errors import InvalidInput
from rewardflow.observe.events import REWARD_SOURCE, Event
from rewardflow.reward.agent_statistics import AgentStatistics
from rewardflow.types import EMPTY, Reward, Rollout

_ROLLOUT_NAMES = (
    "group_id",
    "response",
    "index",
    "group_size",
    "prompt",
    "messages",
    "ground_truth",
    "data_source",
    "extra_info",
    "step",
    "position",
    "policy_version",
)
_TOKEN_NAMES = (*_ROLLOUT_NAMES, "token_ids", "log_probs", "response_mask")
_REWARD_NAMES = (
    "value",
    "kind",
    "error",
    "imputed",
    "components",
    "extras",
    "query",
    "explanation",
    "attempts",
    "latency_s",
    "cost_usd",
    "tokens",
    "cached",
    "traceback",
)
_pack_text = operator.attrgetter(*_ROLLOUT_NAMES)
_pack_tokens = operator.attrgetter(*_TOKEN_NAMES)
_pack_reward = operator.attrgetter(*_REWARD_NAMES)
_TIMES = ("at_s", "started_s")  # fields of events that are points in time, not durations
MAX_GROUP_SIZE = 65_536
_PLAIN = (str, int, float, bool, type(None))

Packed = tuple[Any, ...]
AnswerT = TypeVar("AnswerT", covariant=True)
PackedVerdict = tuple[int, Packed, float]  # the serial number, the reward, and how long its call waited to start


class RunFull(Exception):
    """The host holds as many bytes of the run's rollouts as it may; the client sends the message again later."""


class UnknownClient(Exception):
    """The host does not know the client, which must say hello first."""


def client_id_of(secret: str) -> str:
    """Returns the id of the client with this secret. Nobody can find a secret for the id of another client."""
    return hashlib.blake2b(secret.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Submit:
    """Submits rollouts, by serial number, to one of the client's tickets, with the options of that ticket."""

    ticket: int
    rollouts: list[tuple[int, Packed]]
    due_step: int | None = None
    source: str = REWARD_SOURCE


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Submits rollouts, by serial number, that `score` sent one by one and that belong to no ticket of the client.

    When slots are scarce, their calls queue with those of `due_step` instead of the rollouts' own step.
    """

    rollouts: list[tuple[int, Packed]]
    due_step: int | None = None


@dataclass(frozen=True, slots=True)
class Seal:
    """Says that the ticket will get no more rollouts."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Says that the client no longer waits for these verdicts."""

    serials: list[int]


@dataclass(frozen=True, slots=True)
class CancelStarted:
    """Asks to cancel the ticket's groups for which a call has started; their verdicts have the kind `cancelled`."""

    ticket: int


@dataclass(frozen=True, slots=True)
class StillWanted:
    """Lists the serial numbers up to `last` that the client still waits for; its first message after a reconnect."""

    serials: list[int]
    last: int


Op = Submit | ScoreRequest | Seal | Cancel | CancelStarted | StillWanted


class Message(Generic[AnswerT]):
    """A message of a client, to which the host answers with an `AnswerT`, or raises `UnknownClient`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Hello(Message["Welcome"]):
    """Registers the client, or registers it again after a break. `records`: it wants the events of its run."""

    secret: str
    run: str
    share: float = 1.0
    records: bool = False


@dataclass(frozen=True, slots=True)
class Post(Message[None]):
    """Carries requests, which the host takes all or none: it raises `RunFull` if it has no room for them now."""

    secret: str
    ops: list[Op]


@dataclass(frozen=True, slots=True)
class Take(Message["Delivery"]):
    """Waits for verdicts; `confirmed` is the number of the last delivery that the client has."""

    secret: str
    confirmed: int


@dataclass(frozen=True, slots=True)
class Bye(Message["Delivery"]):
    """Removes the client; the answer holds what it has not confirmed."""

    secret: str
    confirmed: int


@dataclass(frozen=True, slots=True)
class AskStatistics(Message["HostStatistics"]):
    """Asks for the figures of the agent and of all its clients."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Says why the agent stopped for good: the name of the error class, and its message."""

    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """Final verdicts by serial number. The client confirms them by calling `take` with this number.

    `events` are for the record of the client's run. Their times are on the host's clock, which showed `sent_s` when the
    delivery was sent. The first of them is number `first_event` of all events of the outbox `outbox_id`.
    """

    number: int
    verdicts: list[PackedVerdict]
    halt: Halt | None = None
    events: list[Packed] = field(default_factory=list)
    num_events_lost: int = 0
    sent_s: float = 0.0
    outbox_id: str = ""
    first_event: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Tells a client about the agent. A restarted agent has a different `incarnation`."""

    incarnation: str
    name: str
    needs_groups: bool
    may_change_verdicts: bool
    incomplete_after_s: float | None
    settings: Mapping[str, Any] = EMPTY  # without secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """The host's view of one client."""

    client: str
    run: str
    share: float
    out: int  # rollouts without a verdict
    untaken: int  # verdicts that it has not confirmed yet
    num_bytes: int = 0  # size of its rollouts whose verdicts it has not confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatistics:
    agent: AgentStatistics
    clients: tuple[ClientStatus, ...]
    incarnation: str
    up_s: float
    halt: Halt | None = None
    pid: int = 0
    node: str = ""


def pack_rollout(rollout: Rollout, *, with_tokens: bool) -> Packed:
    return _pack_tokens(rollout) if with_tokens else _pack_text(rollout)


def text_size(rollout: Rollout) -> int:
    """Returns about how many bytes the rollout's texts take in a message."""
    messages = sum(len(str(one.get("content", ""))) for one in rollout.messages or ())
    others = (rollout.response, rollout.prompt, rollout.ground_truth, *rollout.extra_info.values())
    return messages + sum(len(one) for one in others if isinstance(one, str))


def unpack_rollout(packed: Packed) -> Rollout:
    """Restores a rollout; raises `InvalidInput` if it is none, or of a group that would take the host's memory."""
    if len(packed) < 2:
        raise InvalidInput(f"a packed rollout must have a group and a response, got {len(packed)} values")
    rollout = Rollout(**dict(zip(_TOKEN_NAMES, packed, strict=False)))
    if rollout.group_size > MAX_GROUP_SIZE:
        raise InvalidInput(f"group_size must be at most {MAX_GROUP_SIZE:,}, got {rollout.group_size:,}")
    return rollout


def pack_reward(reward: Reward) -> Packed:
    """Packs a reward; an extra that cannot be pickled is replaced by a text that says so."""
    packed = _pack_reward(reward)
    if reward.extras is EMPTY or pickle_problem(reward.extras) is None:
        return packed
    extras = {key: _or_its_type(value) for key, value in reward.extras.items()}
    return (*packed[:5], extras, *packed[6:])


def unpack_reward(packed: Packed) -> Reward:
    return Reward(**dict(zip(_REWARD_NAMES, packed, strict=True)))


def pack_event(event: Event) -> Packed:
    form = _form_of(type(event))
    return (form.name, *form.pack(event))


def unpack_event(packed: Packed, *, clock_offset_s: float) -> Event:
    """Restores an event, with its times moved to a clock that is `clock_offset_s` ahead of the sender's."""
    kind = Event.by_name[packed[0]]
    named = dict(zip(_form_of(kind).fields, packed[1:], strict=True))
    for name in _TIMES:
        if name in named:
            named[name] += clock_offset_s
    return kind(**named)


@dataclass(frozen=True, slots=True)
class _EventForm:
    """How events of one class are packed."""

    name: str
    fields: tuple[str, ...]
    pack: Callable[[Event], Packed]


_FORMS: dict[type[Event], _EventForm] = {}


def _form_of(kind: type[Event]) -> _EventForm:
    form = _FORMS.get(kind)
    if form is None:
        names = tuple(one.name for one in fields(kind))
        form = _FORMS[kind] = _EventForm(kind.__name__, names, operator.attrgetter(*names))
    return form


def check_travels(rollout: Rollout, problem_with: Callable[[object], str | None]) -> None:
    """Raises `InvalidInput` with the name of a field that cannot be sent, in the caller's own stack.

    `problem_with` is the transport's: it says why a value cannot be sent.
    """
    if not isinstance(rollout, Rollout):
        raise InvalidInput(f"submit takes rewardflow.Rollout records, got {type(rollout).__name__}")
    for name in ("group_id", "response", "prompt", "data_source", "ground_truth"):
        value = getattr(rollout, name)
        if not _always_travels(value):
            _refuse(name, value, rollout, problem_with)
    if rollout.messages:
        _refuse("messages", rollout.messages, rollout, problem_with)
    if rollout.extra_info is not EMPTY:
        for key, value in rollout.extra_info.items():
            if not _always_travels(key) or not _always_travels(value):
                _refuse(f"extra_info[{key!r}]", {key: value}, rollout, problem_with)


def _always_travels(value: object) -> bool:
    """Whether every transport can send a value: JSON holds no number above 64 bits and no half of a character."""
    if isinstance(value, str):
        return value.isascii()
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return value is None or isinstance(value, float)


def _refuse(name: str, value: object, rollout: Rollout, problem_with: Callable[[object], str | None]) -> None:
    problem = problem_with(value)
    if problem is not None:
        raise InvalidInput(
            f"a rollout must be able to travel to the shared agent, got {name} of index {rollout.index} in group "
            f"{rollout.group_id!r}: {problem}"
        )


def pickle_problem(value: object) -> str | None:
    """Says why a value cannot be pickled, or returns None."""
    if isinstance(value, Mapping) and all(isinstance(one, _PLAIN) for one in value.values()):
        return None
    try:
        pickle.dumps(value)
    except Exception as error:  # objects raise what they like
        return f"{type(error).__name__}: {error}"
    return None


def _or_its_type(value: object) -> object:
    return value if pickle_problem(value) is None else f"<{type(value).__qualname__}, which cannot travel>"
