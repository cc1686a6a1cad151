"""What goes between a client and the host of a shared agent.

Always true: every message may come twice and does its work once: what a client sends has serial numbers, and what it is
sent stays at the host until the client says that it has it. Rollouts and rewards travel as plain tuples, which cost a
tenth of a record to pack; a rollout's tokens and log-probs stay at home unless they are asked for.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.observe.events import REWARD_SOURCE, Event
from rewardflow.reward.agent import AgentStatistics
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
)
_pack_text = operator.attrgetter(*_ROLLOUT_NAMES)
_pack_tokens = operator.attrgetter(*_TOKEN_NAMES)
_pack_reward = operator.attrgetter(*_REWARD_NAMES)
_TIMES = ("at_s", "started_s")  # of events: points on a clock, and not durations
_PLAIN = (str, int, float, bool, type(None))

Packed = tuple[Any, ...]
PackedVerdict = tuple[int, Packed, float]  # a serial number, the reward, and how long its call waited for its start


@dataclass(frozen=True, slots=True)
class Submit:
    """Rollouts by serial number, for one of the client's tickets, which queues and counts as it was opened to."""

    ticket: int
    rollouts: list[tuple[int, Packed]]
    due_step: int | None = None
    source: str = REWARD_SOURCE


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Rollouts by serial number that were submitted one by one, and belong to no ticket of the client."""

    rollouts: list[tuple[int, Packed]]


@dataclass(frozen=True, slots=True)
class Seal:
    """No more rollouts will come for the ticket."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client no longer wants these verdicts, and waits for none of them."""

    serials: list[int]


@dataclass(frozen=True, slots=True)
class CancelStarted:
    """Groups of the ticket that a call is out for are to be given up; their verdicts come as cancelled ones."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Want:
    """All that the client still waits for, of what it has numbered up to `last`; said first after a reconnect."""

    serials: list[int]
    last: int


Op = Submit | ScoreRequest | Seal | Cancel | CancelStarted | Want


@dataclass(frozen=True, slots=True)
class Halt:
    """Why the agent stopped for good: the name of the error, and what it says."""

    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """Final verdicts by serial number. The client has them when it takes again with this number.

    `news` are events for the record of the client's run, on the host's clock, on which it is `sent_s` now. The first is
    number `first_news` of all that came from this `box`.
    """

    number: int
    verdicts: list[PackedVerdict]
    halt: Halt | None = None
    news: list[Packed] = field(default_factory=list)
    num_news_lost: int = 0
    sent_s: float = 0.0
    box: str = ""
    first_news: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What a client must know of the agent. `incarnation` is another one after a restart."""

    incarnation: str
    name: str
    needs_groups: bool
    may_change_verdicts: bool
    incomplete_after_s: float | None
    settings: Mapping[str, Any] = EMPTY  # as people may see them


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSeen:
    """A client as the host sees it."""

    client: str
    run: str
    share: float
    out: int  # rollouts without a verdict
    untaken: int  # verdicts that it does not have yet


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatistics:
    agent: AgentStatistics
    clients: tuple[ClientSeen, ...]
    incarnation: str
    up_s: float
    halt: Halt | None = None
    pid: int = 0
    node: str = ""


def pack_rollout(rollout: Rollout, *, with_tokens: bool) -> Packed:
    return _pack_tokens(rollout) if with_tokens else _pack_text(rollout)


def unpack_rollout(packed: Packed) -> Rollout:
    return Rollout(**dict(zip(_TOKEN_NAMES, packed, strict=False)))


def pack_reward(reward: Reward) -> Packed:
    """What a reward's own extras hold that cannot travel becomes a text that says so."""
    packed = _pack_reward(reward)
    if reward.extras is EMPTY or _problem(reward.extras) is None:
        return packed
    extras = {key: _or_its_type(value) for key, value in reward.extras.items()}
    return (*packed[:5], extras, *packed[6:])


def unpack_reward(packed: Packed) -> Reward:
    return Reward(**dict(zip(_REWARD_NAMES, packed, strict=True)))


def pack_event(event: Event) -> Packed:
    form = _form_of(type(event))
    return (form.name, *form.pack(event))


def unpack_event(packed: Packed, *, later_s: float) -> Event:
    """The event again, on a clock that is `later_s` ahead of the sender's."""
    kind = Event.by_name[packed[0]]
    named = dict(zip(_form_of(kind).fields, packed[1:], strict=True))
    for name in _TIMES:
        if name in named:
            named[name] += later_s
    return kind(**named)


@dataclass(frozen=True, slots=True)
class _EventForm:
    """How events of a kind travel."""

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


def check_travels(rollout: Rollout) -> None:
    """Refuse by name what cannot be sent, where the caller sees it."""
    if not isinstance(rollout, Rollout):
        raise InvalidInput(f"submit takes rewardflow.Rollout records, got {type(rollout).__name__}")
    if not isinstance(rollout.ground_truth, _PLAIN):
        _refuse("ground_truth", rollout.ground_truth, rollout)
    if rollout.messages:
        _refuse("messages", rollout.messages, rollout)
    if rollout.extra_info is not EMPTY:
        for key, value in rollout.extra_info.items():
            if not isinstance(value, _PLAIN):
                _refuse(f"extra_info[{key!r}]", value, rollout)


def _refuse(name: str, value: object, rollout: Rollout) -> None:
    problem = _problem(value)
    if problem is not None:
        raise InvalidInput(
            f"a rollout must be able to travel to the shared agent, got {name} of index {rollout.index} in group "
            f"{rollout.group_id!r}: {problem}"
        )


def _problem(value: object) -> str | None:
    if isinstance(value, Mapping) and all(isinstance(one, _PLAIN) for one in value.values()):
        return None
    try:
        pickle.dumps(value)
    except Exception as error:  # objects raise what they like
        return f"{type(error).__name__}: {error}"
    return None


def _or_its_type(value: object) -> object:
    return value if _problem(value) is None else f"<{type(value).__qualname__}, which cannot travel>"
