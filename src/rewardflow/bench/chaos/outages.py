"""The scenarios of outages, poison and absurd headers: a service that goes down, or hangs on some rollouts for ever.

Always true: time is virtual, so a trial covers hours of waiting in a second, and its seed decides all delays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rewardflow import clock
from rewardflow.bench.chaos.hostile_server import rollout_of
from rewardflow.bench.chaos.scenario import Scenario, Tried
from rewardflow.bench.chaos.truth_check import LogText
from rewardflow.errors import RateLimited, RewardflowError, ServiceError
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.code.current_call import report_headers, report_usage
from rewardflow.types import Reward, Rollout

_GIVE_UP_S = 600.0
_TIMEOUT_S = 60.0
_MAX_SLOTS = 64
_LONGEST_S = 3600.0  # of a run in which one number is odd
_TPM = 300_000
_MAX_COST_OF_OUTAGE = 2  # so few rollouts that are left do not show an outage
_ABSURD_HEADERS = (
    {"Retry-After": "1e300"},
    {"Retry-After": "99999999999"},
    {"Retry-After": "-5"},
    {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"},
    {"x-ratelimit-limit-requests": "0", "x-ratelimit-reset-requests": "1e40h"},
    {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "9" * 400},
)
_ODD_NUMBERS = ("long Retry-After", "long Retry-After of a 503", "few requests", "few tokens", "many tokens")
_USUAL_TOKENS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weather:
    """What happens to a service in one trial."""

    seed: int
    poisoned: frozenset[int] = frozenset()  # rollouts whose calls never end
    down_from_s: float = 0.0
    down_until_s: float = 0.0
    absurd_share: float = 0.0  # of calls that are refused with an absurd header
    odd_rollout: int | None = None  # whose first answer alone has a number that is possible, but far from all others

    def truth_of(self, number: int) -> float:
        return random.Random(f"{self.seed}/{number}").random()


class _Service:
    """A judge that is down for a while, hangs on some rollouts, and sends absurd headers now and then."""

    def __init__(self, weather: _Weather) -> None:
        self._weather = weather
        self._chance = random.Random(weather.seed)
        self._answered: set[int] = set()  # rollouts whose first call has ended

    async def compute_score(self, rollout: Rollout) -> float:
        number = int(rollout.group_id.removeprefix("group-"))
        weather, now_s = self._weather, asyncio.get_running_loop().time()
        if number in weather.poisoned:
            await asyncio.sleep(1e9)
        if weather.down_from_s <= now_s < weather.down_until_s:
            raise ServiceError("down for maintenance", status=503)
        is_first = number not in self._answered
        if is_first and self._chance.random() < weather.absurd_share:
            self._answered.add(number)
            raise RateLimited(headers=self._chance.choice(_ABSURD_HEADERS))
        await asyncio.sleep(self._chance.uniform(0.5, 5.0))
        self._answered.add(number)
        self._tell_numbers(is_odd=is_first and number == weather.odd_rollout)
        return weather.truth_of(number)

    def _tell_numbers(self, *, is_odd: bool) -> None:
        kind = self._chance.choice(_ODD_NUMBERS) if is_odd else ""
        if kind == "long Retry-After":
            raise RateLimited(retry_after_s=self._chance.uniform(1_000.0, 86_400.0))
        if kind == "long Retry-After of a 503":
            raise ServiceError(status=503, retry_after_s=self._chance.uniform(1_000.0, 86_400.0))
        if kind == "few requests":
            report_headers({"x-ratelimit-limit-requests": "1"})
        if kind == "few tokens":
            report_headers({"x-ratelimit-limit-tokens": "100"})
        report_usage(tokens=20_000_000 if kind == "many tokens" else _USUAL_TOKENS)


def outages(seed: int, _folder: Path) -> Tried:
    """Takes the service down for a while."""
    began_s = random.Random(seed).uniform(0.0, 100.0)
    duration_s = random.Random(seed).choice((5.0, 30.0, 200.0))
    return _try(_Weather(seed=seed, down_from_s=began_s, down_until_s=began_s + duration_s))


def poison(seed: int, _folder: Path) -> Tried:
    """Makes some rollouts hang in every call: the first ones, or any."""
    chance = random.Random(seed)
    count = num_rollouts(seed)
    num_poisoned = int(count * chance.choice((0.02, 0.05, 0.1, 0.2)))
    chosen = range(num_poisoned) if chance.random() < 0.5 else chance.sample(range(count), num_poisoned)
    return _try(_Weather(seed=seed, poisoned=frozenset(chosen)))


def absurd_headers(seed: int, _folder: Path) -> Tried:
    """Refuses some calls with headers that ask for absurd waits, and sends one number that is far from all others."""
    chance = random.Random(seed)
    share = chance.choice((0.0, 0.005, 0.02, 0.1))
    odd_rollout = chance.randrange(_MAX_SLOTS, num_rollouts(seed))
    return _try(_Weather(seed=seed, absurd_share=share, odd_rollout=odd_rollout))


def num_rollouts(seed: int) -> int:
    return (100, 400, 1000)[seed % 3]


def _try(weather: _Weather) -> Tried:
    """Scores a batch in this weather. Every rollout that is not poisoned gets its true score."""
    count = num_rollouts(weather.seed)
    slots = random.Random(f"{weather.seed}/slots").choice((4, 16, _MAX_SLOTS))
    with LogText():
        complaints = clock.run(_score(weather, count, slots), seed=weather.seed)
    note = f"{slots} slots, {len(weather.poisoned)} of {count} poisoned"
    return Tried(count, tuple(complaints), f"{note}, down for {weather.down_until_s - weather.down_from_s:.0f} s")


async def _score(weather: _Weather, count: int, slots: int) -> list[str]:
    agent = RewardAgent(
        _Service(weather),
        max_concurrency=slots,
        timeout_s=_TIMEOUT_S,
        outage_give_up_s=_GIVE_UP_S,
        max_attempts=3,
        tpm=_TPM if weather.seed % 2 else "auto",
    )
    try:
        async with agent:
            groups = await agent.submit([rollout_of(number) for number in range(count)]).all()
    except RewardflowError as error:
        return [f"the run ended with {type(error).__name__}: {error}"]
    verdicts = {int(group.group_id.removeprefix("group-")): group.rewards[0] for group in groups}
    complaints = list(_check(weather, count, verdicts))
    took_s = asyncio.get_running_loop().time()
    if weather.odd_rollout is not None and took_s > _LONGEST_S:
        complaints.append(f"the run took {took_s:.0f} s, more than {_LONGEST_S:.0f} s")
    num_failed = sum(verdict.kind == "service" for verdict in verdicts.values())
    is_allowed = len(complaints) == num_failed <= _MAX_COST_OF_OUTAGE
    return [] if is_allowed else complaints


def _check(weather: _Weather, count: int, verdicts: dict[int, Reward]) -> Iterator[str]:
    for number in range(count):
        verdict = verdicts.get(number)
        if verdict is None:
            yield f"rollout {number} has no verdict"
        elif number in weather.poisoned:
            if verdict.is_scored:
                yield f"rollout {number} has a score, but every call for it hangs"
        elif verdict.value != weather.truth_of(number):
            yield f"rollout {number} should have a score, got {verdict.kind}: {verdict.error}"


OUTAGES = Scenario(
    name="outages",
    promise="a service that is down for less than outage_give_up_s costs at most two verdicts",
    unit="rollouts",
    seconds=3.0,
    trial=outages,
)
POISON = Scenario(
    name="poison",
    promise="rollouts that make every call hang fail, and all others are scored",
    unit="rollouts",
    seconds=3.0,
    trial=poison,
)
ABSURD_HEADERS = Scenario(
    name="absurd-headers",
    promise="an absurd header, or one number far from all others, does not stop a run",
    unit="rollouts",
    seconds=3.0,
    trial=absurd_headers,
)
