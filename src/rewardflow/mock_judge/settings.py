"""The settings of the mock judge, with their defaults and rules.

Always true: a settings record that exists is valid. Times and limits are those of the simulated service; only `scale`
says how fast its clock runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.reward.latency import Latency, parse_latency

Fault = Literal[
    "429",  # too many requests, without Retry-After
    "429_retry_after",  # the same with Retry-After
    "500",  # an error in JSON
    "502",  # a proxy's page in HTML
    "hang",  # no response
    "reset",  # the connection is reset
    "slow_body",  # a right answer that arrives slowly
    "truncated",  # the body ends before its length
    "malformed_body",  # the response is not JSON
    "malformed_verdict",  # the response is JSON, but the verdict in it is cut off
    "wrong_schema",  # the verdict is JSON of another shape
    "nan",  # every score is NaN
    "out_of_range",  # every score is outside its scale
    "huge_body",  # a right answer, followed by `huge_body_bytes` of spaces
]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

Scores = Literal[
    "made_up",  # drawn from the seed and the prompt
    "exact",  # the high end for an answer that equals the reference, the low end for others
    "graded",  # the share of characters in their places, on the scale
    "length",  # the longer the answer, the better: a judge that a policy can exploit
    "word",  # the high end for an answer with the word "please": another one
]
SCORES: Final[tuple[Scores, ...]] = get_args(Scores)

_ROUNDING = 1e-9  # ten times 0.1 may add up to a little more than 1


@dataclass(frozen=True, slots=True)
class NamedFrom:
    """The name of the model after so many answers."""

    num_answers: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MockJudgeSettings:
    """The simulated service. `docs/mock_judge.md` explains each setting."""

    seed: int = 0
    scores: Scores = "made_up"
    latency: str = "constant:0"
    scale: float = 1.0
    faults: Mapping[str, float] = field(default_factory=dict)
    max_concurrency: int | None = None
    rpm: float | None = None
    tpm: float | None = None
    burst_s: float = 60.0
    says_retry_after: bool = True
    says_limits: bool = True
    takes_schema: bool = True
    gives_log_probs: bool = True
    caches_prompts: bool = False
    retry_after_s: float = 2.0
    hang_s: float = 600.0
    slow_body_s: float = 10.0
    huge_body_bytes: int = 64 * 2**20
    batch_latency: str = "constant:0"
    batch_expired_share: float = 0.0
    lost_creations: int = 0
    model: str = "mock-judge"
    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[NamedFrom, ...] = field(init=False, repr=False, compare=False)
    distribution: Latency = field(init=False, repr=False, compare=False)
    batch_distribution: Latency = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "distribution", parse_latency(self.latency))
        object.__setattr__(self, "batch_distribution", parse_latency(self.batch_latency))
        if self.scores not in SCORES:
            raise InvalidInput(f"scores must be one of {', '.join(SCORES)}, got {self.scores!r}")
        _check_faults(self.faults)
        for name in ("scale", "burst_s", "retry_after_s", "hang_s", "slow_body_s"):
            _positive(name, getattr(self, name))
        for name in ("rpm", "tpm"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.max_concurrency is not None:
            _whole("max_concurrency", self.max_concurrency, 1, math.inf)
        _whole("huge_body_bytes", self.huge_body_bytes, 1, math.inf)
        if not _is_number(self.batch_expired_share) or not 0 <= self.batch_expired_share <= 1:
            raise InvalidInput(f"batch_expired_share must lie in [0, 1], got {self.batch_expired_share!r}")
        _whole("lost_creations", self.lost_creations, 0, math.inf)
        _whole("port", self.port, 0, 65_535)
        _whole("seed", self.seed, -math.inf, math.inf)
        for name in ("model", "host"):
            if not getattr(self, name):
                raise InvalidInput(f"{name} must be a name, got an empty string")
        object.__setattr__(self, "models", parse_models(self.model))

    def model_after(self, num_answers: int) -> str:
        """Returns the name of the model in the next answer, after so many."""
        return next(one.name for one in reversed(self.models) if num_answers >= one.num_answers)


def parse_models(text: str) -> tuple[NamedFrom, ...]:
    """Parses a name, or names with the numbers of answers after which they hold: `m-1,500=m-2`."""
    first, *others = (part.strip() for part in text.split(","))
    names = [NamedFrom(0, first)]
    for part in others:
        count, _, name = (side.strip() for side in part.partition("="))
        if not count.isdecimal() or int(count) <= names[-1].num_answers or not name:
            raise InvalidInput(
                f"model must be a name, or NAME,N=NAME,... with growing numbers of answers, got {part!r} in {text!r}"
            )
        names.append(NamedFrom(int(count), name))
    if not first:
        raise InvalidInput(f"model must begin with a name, got {text!r}")
    return tuple(names)


def parse_faults(text: str) -> dict[str, float]:
    """Parses text such as `429=0.05,hang=0.01` into shares by fault."""
    shares: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = part.partition("=")
        name = name.strip()
        try:
            value = float(share)
        except ValueError:
            raise InvalidInput(f"faults must be written NAME=SHARE,..., got {part!r}") from None
        if name in shares:
            raise InvalidInput(f"a fault must be named once, got {name!r} again in {text!r}")
        shares[name] = value
    return shares


def _check_faults(shares: Mapping[str, float]) -> None:
    for name, share in shares.items():
        if name not in FAULTS:
            raise InvalidInput(f"a fault must be one of {', '.join(FAULTS)}, got {name!r}")
        if not _is_number(share) or not 0 <= share <= 1:
            raise InvalidInput(f"the share of a fault must lie in [0, 1], got {name}={share!r}")
    total = math.fsum(shares.values())
    if total > 1 + _ROUNDING:
        raise InvalidInput(f"the shares of all faults must add up to at most 1, got {dict(shares)}, that is {total:g}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int | float) or not _is_number(value) or value <= 0:
        raise InvalidInput(f"{name} must be a positive number, got {value!r}")


def _whole(name: str, value: object, at_least: float, at_most: float) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
        floor = f" of at least {at_least:g}" if math.isfinite(at_least) else ""
        ceiling = f" and at most {at_most:g}" if math.isfinite(at_most) else ""
        raise InvalidInput(f"{name} must be a whole number{floor}{ceiling}, got {value!r}")
