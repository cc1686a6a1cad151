"""Defines the central records: a rollout goes in, a reward comes out, and a scored group holds both.

Always true: records are frozen; a reward is `scored` with a finite number or `failed` with a kind, never a made-up
number; `group.rollouts[i]` was judged by `group.rewards[i]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.notebook_table import html_table

Status = Literal["scored", "failed"]

FailureKind = Literal[
    "timeout",  # no answer in time
    "rate_limited",  # the service said "too many requests" until we gave up
    "service",  # 5xx, refused or broken connection
    "unparsable",  # an answer came, but no finite score could be read from it
    "user_error",  # the reward's own code raised
    "cancelled",  # the caller cancelled it
    "budget",  # the spend cap was reached first
    "outage",  # the service stayed down until we gave up
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
UNDECIDED_KINDS: tuple[FailureKind, ...] = ("cancelled", "budget", "outage")  # we stopped before anybody judged it


class _Empty(Mapping[str, Any]):
    """An empty read-only mapping, fit as a default value; unlike MappingProxyType it can be pickled."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "{}"


EMPTY: Mapping[str, Any] = _Empty()


_ROLLOUT_TYPES: tuple[tuple[str, type], ...] = (
    ("group_id", str),
    ("response", str),
    ("index", int),
    ("group_size", int),
    ("step", int),
    ("position", int),
    ("prompt", str),
    ("messages", Iterable),  # in some datasets an array
    ("extra_info", Mapping),
)


_SHOWN_CHARS = 60
_MAX_INT = 2**63 - 1  # the largest that the journal can hold; hex in messages, because decimal digits are limited


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One response of the policy to one prompt.

    `group_id` names the prompt's group within its step; never derive it from the prompt's text, because prompts repeat.
    Where several policy versions sampled a response, `token_versions` gives the version of each token, and
    `policy_version` is the oldest of them. The agent judges older steps first, and within a step first the groups of
    lower `position`.
    """

    group_id: str
    response: str
    index: int = 0
    group_size: int = 1
    prompt: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    ground_truth: Any = None
    data_source: str = ""
    extra_info: Mapping[str, Any] = EMPTY
    step: int = 0
    position: int = 0
    token_ids: Sequence[int] | None = None
    log_probs: Sequence[float] | None = None
    response_mask: Sequence[int] | None = None
    policy_version: int | None = None
    token_versions: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.extra_info is None:  # common in data that was prepared for other tools
            object.__setattr__(self, "extra_info", EMPTY)
        if self.messages is None:
            object.__setattr__(self, "messages", ())
        for name, kind in _ROLLOUT_TYPES:
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(f"{name} of a rollout must be {kind.__name__}, got {getattr(self, name)!r:.100}")
        if not 0 <= self.index < self.group_size:
            raise InvalidInput(
                f"index must lie in [0, group_size), got index={self.index}, group_size={self.group_size} "
                f"in group {self.group_id!r}"
            )
        if self.group_size > _MAX_INT or not -_MAX_INT <= self.step <= _MAX_INT:
            name, value = ("group_size", self.group_size) if self.group_size > _MAX_INT else ("step", self.step)
            raise InvalidInput(f"{name} of a rollout must fit 64 bits, got {value:#x} in group {self.group_id!r}")

    def __repr__(self) -> str:
        """Shows which one it is and how its response begins; tokens and messages would fill screens."""
        return f"Rollout({self.group_id!r}, {self.index} of {self.group_size}, {_begin(self.response)!r})"

    @property
    def place(self) -> tuple[int, str, int]:
        """Step, group and index: what tells a rollout from all others of its run."""
        return self.step, self.group_id, self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The verdict on one rollout.

    `status` follows from `value`: a finite number is `scored`, None is `failed`.
    """

    value: float | None = None
    status: Status = field(default="")  # type: ignore[arg-type]  # set from `value` below
    kind: FailureKind | None = None
    error: str | None = None
    imputed: bool = False
    components: Mapping[str, float | None] = EMPTY
    extras: Mapping[str, Any] = EMPTY
    query: str | None = None
    explanation: str | None = None
    attempts: int = 0
    latency_s: float = 0.0
    cost_usd: float = 0.0
    tokens: int = 0
    cached: bool = False
    traceback: str | None = None  # the user's frames, if the reward's own code raised

    def __post_init__(self) -> None:
        derived: Status = "failed" if self.value is None else "scored"
        if not self.status:
            object.__setattr__(self, "status", derived)
        elif self.status != derived:
            raise InvalidInput(f"status must agree with value, got status={self.status!r}, value={self.value!r}")
        if self.value is None:
            if self.kind is None:
                object.__setattr__(self, "kind", "user_error")
            elif self.kind not in FAILURE_KINDS:
                raise InvalidInput(f"kind must be one of {', '.join(FAILURE_KINDS)}, got {self.kind!r}")
        elif not math.isfinite(self.value):
            raise InvalidInput(f"a scored reward needs a finite value, got value={self.value!r}")

    def __repr__(self) -> str:
        if self.value is None:
            told = f"failed: {self.kind}" + (f", {_begin(self.error)!r}" if self.error else "")
        else:
            told = f"{self.value:.6g}" + (", imputed" if self.imputed else "")
        cost = f", cost ${self.cost_usd:.4g}" if self.cost_usd else ""
        return f"Reward({told}{cost}{', cached' if self.cached else ''})"

    def _repr_html_(self) -> str:
        return RewardList([self])._repr_html_()

    @property
    def is_scored(self) -> bool:
        return self.value is not None

    def _fill_measures(self, attempts: int, latency_s: float, cost_usd: float, tokens: int) -> None:
        """Sets fields of a frozen record that nobody has seen yet. For the dispatcher: a copy would cost twice."""
        put_attempts, put_latency_s, put_cost_usd, put_tokens = _PUT_MEASURES
        put_attempts(self, attempts)
        put_latency_s(self, latency_s)
        put_cost_usd(self, cost_usd)
        put_tokens(self, tokens)


_PUT_MEASURES = tuple([vars(Reward)[name].__set__ for name in ("attempts", "latency_s", "cost_usd", "tokens")])


class _RewardDraft:
    """Has the slots of a reward, but is not frozen."""

    __slots__ = tuple(one.name for one in fields(Reward))


def scored_reward(value: float) -> Reward:
    """Returns `Reward(value=value)` for a finite number that the caller has checked.

    The agent makes one for nearly every call. The constructor of a frozen record sets each field through a function,
    which takes five times as long as to fill a draft and to turn it into the record.
    """
    draft: Any = _RewardDraft()
    draft.value, draft.status, draft.kind, draft.error = value, "scored", None, None
    draft.imputed, draft.components, draft.extras = False, EMPTY, EMPTY
    draft.query = draft.explanation = draft.traceback = None
    draft.attempts, draft.latency_s, draft.cost_usd, draft.tokens = 0, 0.0, 0.0, 0
    draft.cached = False
    draft.__class__ = Reward
    reward: Reward = draft
    return reward


class RewardList(list[Reward]):
    """A list of rewards that notebooks show as a table."""

    def _repr_html_(self) -> str:
        return html_table(_summary(self), _REWARD_HEADINGS, [_reward_cells(reward) for reward in self])


_REWARD_HEADINGS = ("score", "why", "components", "cost", "latency", "attempts")


def _reward_cells(reward: Reward) -> tuple[object, ...]:
    score = f"failed: {reward.kind}" if reward.value is None else f"{reward.value:.6g}"
    parts = ", ".join(
        f"{name} {value if value is None else f'{value:.3g}'}" for name, value in reward.components.items()
    )
    cost = f"${reward.cost_usd:.4g}" + (" (cached)" if reward.cached else "")
    return score, reward.error or reward.explanation, parts, cost, f"{reward.latency_s:.2f} s", reward.attempts


def _summary(rewards: Sequence[Reward]) -> str:
    values = [reward.value for reward in rewards if reward.value is not None]
    mean = f", mean {sum(values) / len(values):.3g}" if values else ""
    num_failed = len(rewards) - len(values)
    cost_usd = sum(reward.cost_usd for reward in rewards)
    failed, cost = f", {num_failed:,} failed" if num_failed else "", f", cost ${cost_usd:.4g}" if cost_usd else ""
    return f"{len(rewards):,} reward{'s' if len(rewards) != 1 else ''}{mean}{failed}{cost}"


def _begin(text: str | None) -> str:
    """Returns the first characters of a text, for a repr of one line."""
    return text or "" if text is None or len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """All rollouts of one prompt with their rewards, aligned by position and sorted by index."""

    group_id: str
    step: int
    group_size: int
    rollouts: tuple[Rollout, ...]
    rewards: tuple[Reward, ...]

    def __repr__(self) -> str:
        return f"ScoredGroup({self.group_id!r}, step {self.step}, {_summary(self.rewards)})"

    def _repr_html_(self) -> str:
        pairs = zip(self.rollouts, self.rewards, strict=True)
        rows = [(rollout.index, rollout.response, *_reward_cells(reward)) for rollout, reward in pairs]
        caption = f"group {self.group_id} of step {self.step}: {_summary(self.rewards)}"
        return html_table(caption, ("index", "response", *_REWARD_HEADINGS), rows)

    @property
    def is_complete(self) -> bool:
        """False only for a group that was cancelled before all of its rollouts were submitted."""
        return len(self.rollouts) == self.group_size

    @property
    def num_failed(self) -> int:
        return sum(1 for reward in self.rewards if reward.value is None)
