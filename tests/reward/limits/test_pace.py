from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pace_table import Setting, best_constant_share, figures_of
from simulated_pace import Service, run

from rewardflow import clock
from rewardflow.errors import InvalidInput, RateLimited
from rewardflow.mock_judge import MockJudgeSettings
from rewardflow.mock_judge.limits import Limits
from rewardflow.reward.limits.pace import Pace, Start
from rewardflow.reward.simulated_service import SimulatedService

MINUTE_S = 60.0


class Driver:
    """Keeps a number of slots busy: starts calls to a service when the pace allows, and retries refused ones."""

    def __init__(self, pace: Pace, service: SimulatedService, slots: int) -> None:
        self.pace = pace
        self.service = service
        self.free = asyncio.Semaphore(slots)

    async def run(self, until_s: float, changes: Sequence[tuple[float, Callable[[], None]]] = ()) -> None:
        loop = asyncio.get_running_loop()
        for at, change in changes:
            loop.call_at(at, change)
        async with asyncio.TaskGroup() as group:
            while loop.time() < until_s:
                await self.free.acquire()
                await self._wait_for_pace()
                group.create_task(self._call(self.pace.start(loop.time(), 0)))

    async def _wait_for_pace(self) -> None:
        loop = asyncio.get_running_loop()
        # A loop, because a refused call may move `ready_at` while we wait, and no event reports that.
        while (wait_s := self.pace.ready_at(loop.time(), 0) - loop.time()) > 0.0:  # noqa: ASYNC110
            await asyncio.sleep(wait_s)

    async def _call(self, start: Start) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self.service.call()
        except RateLimited as refusal:
            self.pace.limited(start, loop.time(), refusal.retry_after_s)
        else:
            self.pace.succeeded(start, loop.time(), 0)
        finally:
            self.free.release()


def drive(
    pace: Pace, service: SimulatedService, slots: int, until_s: float, changes: Sequence[tuple[float, float]] = ()
) -> None:
    """Runs calls until then; each change sets the rpm of the service at a time."""

    def change_to(rpm: float) -> Callable[[], None]:
        return lambda: setattr(service, "rpm", rpm)

    clock.run(Driver(pace, service, slots).run(until_s, [(at, change_to(rpm)) for at, rpm in changes]))


def starts_of(pace: Pace, num_calls: int, late_s: float = 0.0) -> list[float]:
    """Returns when calls start if the caller asks all the time and its timers fire late."""
    now, starts = 0.0, []
    for _ in range(num_calls):
        at = pace.ready_at(now, 0)
        if at > now:
            now = at + late_s
        pace.start(now, 0)
        starts.append(now)
    return starts


# -- a set rate --


def test_a_set_rate_spaces_calls_evenly_without_a_burst() -> None:
    starts = starts_of(Pace(600, None), 50)
    assert starts == pytest.approx([0.1 * i for i in range(50)])


def test_a_late_wake_up_is_not_made_up_for_at_a_slow_rate() -> None:
    starts = starts_of(Pace(600, None), 50, late_s=0.05)
    assert min(b - a for a, b in itertools.pairwise(starts)) >= 0.1 - 1e-9


def test_a_late_wake_up_loses_no_throughput_at_a_fast_rate() -> None:
    starts = starts_of(Pace(60_000, None), 10_001, late_s=0.001)
    assert starts[-1] == pytest.approx(10.0, rel=0.01)


def test_idle_time_is_not_saved_up_at_a_fast_rate() -> None:
    pace = Pace(60_000, None)
    pace.start(0.0, 0)
    now, burst = 100.0, 0
    while pace.ready_at(now, 0) <= now:
        pace.start(now, 0)
        burst += 1
    assert burst <= 21


@pytest.mark.parametrize("rpm", [7, 600, 3000])
def test_a_service_without_burst_never_refuses_a_set_rate(rpm: float) -> None:
    service = SimulatedService(rpm=rpm, burst=1)
    drive(Pace(rpm, None), service, slots=64, until_s=3 * MINUTE_S)
    assert service.num_rejected == 0
    assert service.accepted_share(0.0, 3 * MINUTE_S) >= 0.99


@pytest.mark.parametrize("rpm", [600, "auto", None])
def test_a_429_with_retry_after_stops_all_sending_until_then(rpm: float | Literal["auto"] | None) -> None:
    pace = Pace(rpm, None)
    first, second = pace.start(0.0, 0), pace.start(0.5, 0)
    pace.limited(first, 1.0, retry_after_s=30.0)
    pace.limited(second, 1.0, retry_after_s=5.0)
    assert pace.ready_at(1.0, 0) == 31.0
    assert pace.statistics(11.0).stopped_for_s == 20.0
    assert pace.ready_at(31.0, 0) <= 31.0


@pytest.mark.parametrize("retry_after_s", [math.inf, math.nan, -5.0, 0.0])
def test_a_retry_after_that_makes_no_sense_stops_nothing(retry_after_s: float) -> None:
    pace = Pace(None, None)
    pace.limited(pace.start(0.0, 0), 1.0, retry_after_s)
    assert pace.ready_at(1.0, 0) <= 1.0


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_rate_must_be_positive(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"rpm must be positive.* got "):
        Pace(value, None)
    with pytest.raises(InvalidInput, match="tpm must be positive"):
        Pace(None, value)


# -- tokens --


def tokens_started(pace: Pace, tokens: int, until_s: float) -> int:
    now, total = 0.0, 0
    while (now := max(now, pace.ready_at(now, tokens))) < until_s:
        pace.start(now, tokens)
        total += tokens
    return total


@pytest.mark.parametrize("tokens", [1, 300, 7_000, 200_000])
def test_a_set_tpm_is_kept_by_calls_of_any_size(tokens: int) -> None:
    total = tokens_started(Pace(None, 60_000), tokens, until_s=20 * MINUTE_S)
    assert 20 * 60_000 * 0.95 <= total <= 20 * 60_000 + 6_000 + tokens


def test_a_call_larger_than_a_minutes_budget_starts_when_the_bucket_is_full() -> None:
    pace = Pace(None, 1_000)
    assert pace.ready_at(0.0, 50_000) <= 0.0
    pace.start(0.0, 50_000)
    assert 2_900.0 < pace.ready_at(0.0, 50_000) < 3_100.0


def test_a_reservation_is_settled_by_what_was_used() -> None:
    pace = Pace(None, 60_000)
    start = pace.start(0.0, 6_000)
    assert pace.ready_at(0.0, 3_000) > 0.0
    pace.succeeded(start, 0.0, tokens_used=1_000)
    assert pace.ready_at(0.0, 3_000) <= 0.0


def test_without_reported_usage_the_reservation_stands_and_an_abandoned_call_gives_nothing_back() -> None:
    for end in ("succeeded", "abandoned"):
        pace = Pace(None, 60_000)
        start = pace.start(0.0, 6_000)
        if end == "succeeded":
            pace.succeeded(start, 0.0, tokens_used=0)
        else:
            pace.abandoned(start, 0.0)
        assert pace.ready_at(0.0, 3_000) == pytest.approx(3.0)


def test_a_refused_call_gives_its_tokens_back() -> None:
    pace = Pace(None, 60_000)
    pace.limited(pace.start(0.0, 6_000), 0.0, None)
    assert pace.ready_at(0.0, 6_000) <= 0.0


def test_the_estimate_is_the_running_mean_of_reported_usage() -> None:
    pace = Pace(None, None)
    assert pace.estimate_tokens() == 0
    for used in (100, 200, 0, 300):
        pace.succeeded(pace.start(0.0, 0), 0.0, used)
    assert pace.estimate_tokens() == 200
    for _ in range(500):
        pace.succeeded(pace.start(0.0, 0), 0.0, 1_000)
    assert pace.estimate_tokens() == pytest.approx(1_000, rel=0.01)


# -- headers --


def test_announced_limits_are_kept_before_any_429() -> None:
    pace = Pace("auto", "auto")
    pace.learn_headers({"x-ratelimit-limit-requests": "600", "x-ratelimit-limit-tokens": "90000"}, 0.0)
    assert pace.rpm == pytest.approx(582.0)
    assert pace.tpm == 90_000.0
    assert tokens_started(pace, 3_000, until_s=10 * MINUTE_S) <= 10 * 90_000 + 9_000 + 3_000


def test_a_set_limit_is_not_changed_by_headers() -> None:
    pace = Pace(120, 1_000)
    pace.learn_headers({"x-ratelimit-limit-requests": "600", "x-ratelimit-limit-tokens": "90000"}, 0.0)
    assert (pace.rpm, pace.tpm) == (120.0, 1_000.0)


def test_429s_overrule_an_announced_limit() -> None:
    pace, service = Pace("auto", None), SimulatedService(rpm=300, burst=20)
    pace.learn_headers({"x-ratelimit-limit-requests": "600"}, 0.0)
    drive(pace, service, slots=256, until_s=5 * MINUTE_S)
    assert service.accepted_share(MINUTE_S, 5 * MINUTE_S) >= 0.9
    assert service.rejected_share(MINUTE_S, 5 * MINUTE_S) <= 0.02


# -- a learnt rate --


def test_without_a_429_the_learnt_pace_never_waits() -> None:
    pace = Pace("auto", "auto")
    for i in range(1000):
        assert pace.ready_at(i * 1e-6, 500) <= i * 1e-6
        pace.succeeded(pace.start(i * 1e-6, 500), 1.0, 500)
    statistics = pace.statistics(1.0)
    assert (statistics.rpm, statistics.tpm, statistics.state, statistics.num_limited) == (None, None, "free", 0)


@pytest.mark.parametrize("slots", [256, 1024])
@pytest.mark.parametrize("burst", [1, 60])
@pytest.mark.parametrize(
    ("latency_s", "rejection_latency_s"),
    [(0.3, 0.05), (0.3, 0.3), (20.0, 0.05), (20.0, 20.0)],
)
def test_the_rate_is_found_and_used_with_hardly_a_429(
    slots: int, burst: int, latency_s: float, rejection_latency_s: float
) -> None:
    service = SimulatedService(rpm=600, burst=burst, latency_s=latency_s, rejection_latency_s=rejection_latency_s)
    drive(Pace("auto", None), service, slots, until_s=10 * MINUTE_S)
    assert service.accepted_share(MINUTE_S, 10 * MINUTE_S) >= 0.95
    assert service.rejected_share(MINUTE_S, 10 * MINUTE_S) <= 0.015


@pytest.mark.parametrize("rpm", [30, 6000])
def test_slow_and_fast_services_are_found_too(rpm: float) -> None:
    service = SimulatedService(rpm=rpm, burst=10)
    drive(Pace("auto", None), service, slots=1024, until_s=5 * MINUTE_S)
    assert service.accepted_share(MINUTE_S, 5 * MINUTE_S) >= 0.9


@pytest.mark.parametrize("burst", [1, 60])
def test_a_service_that_says_retry_after_is_found_too(burst: int) -> None:
    service = SimulatedService(rpm=600, burst=burst, retry_after_s=1.0)
    drive(Pace("auto", None), service, slots=256, until_s=10 * MINUTE_S)
    assert service.accepted_share(MINUTE_S, 10 * MINUTE_S) >= 0.9
    assert service.rejected_share(MINUTE_S, 10 * MINUTE_S) <= 0.02


@pytest.mark.parametrize("burst", [1, 60])
def test_a_limit_that_is_raised_threefold_is_found_within_minutes(burst: int) -> None:
    service = SimulatedService(rpm=600, burst=burst)
    drive(Pace("auto", None), service, slots=1024, until_s=10 * MINUTE_S, changes=[(5 * MINUTE_S, 1800.0)])
    assert service.accepted_share(9 * MINUTE_S, 10 * MINUTE_S) >= 0.9


@pytest.mark.parametrize("burst", [1, 60])
@pytest.mark.parametrize("rejection_latency_s", [0.05, 20.0])
def test_a_limit_that_is_halved_is_found_within_two_minutes(burst: int, rejection_latency_s: float) -> None:
    service = SimulatedService(
        rpm=600, burst=burst, latency_s=rejection_latency_s, rejection_latency_s=rejection_latency_s
    )
    drive(Pace("auto", None), service, slots=1024, until_s=10 * MINUTE_S, changes=[(5 * MINUTE_S, 300.0)])
    assert service.rejected_share(7 * MINUTE_S, 10 * MINUTE_S) <= 0.02
    assert service.accepted_share(7 * MINUTE_S, 10 * MINUTE_S) >= 0.9


class NoisyService(SimulatedService):
    """Refuses some calls by chance, also below its limit."""

    def __init__(self, noise: float, **options: Any) -> None:
        super().__init__(**options)
        self._noise = noise
        self._rng = random.Random(0)

    async def call(self) -> None:
        if self._rng.random() < self._noise:
            self.arrivals.append((asyncio.get_running_loop().time(), False))
            raise RateLimited()
        await super().call()


class JudgeService(SimulatedService):
    """Limits calls as the mock judge does: Retry-After is exact to the millisecond."""

    def __init__(self, rpm: float, burst: int, latency_s: float) -> None:
        super().__init__(rpm=rpm, latency_s=latency_s)
        self._limits = Limits(MockJudgeSettings(rpm=rpm, burst_s=burst * 60.0 / rpm))
        self._reply_s = latency_s

    async def call(self) -> None:
        now = asyncio.get_running_loop().time()
        refusal = self._limits.admit(now, 0)
        self.arrivals.append((now, refusal is None))
        if refusal is not None:
            await asyncio.sleep(0.05)
            raise RateLimited(retry_after_s=math.ceil(1000.0 * (refusal.retry_after_s or 0.0)) / 1000.0)
        await asyncio.sleep(self._reply_s)


@pytest.mark.parametrize("slots", [256, 1024])
@pytest.mark.parametrize("replies_s", [(0.2, 0.2), (20.0, 20.0), (1.0, 40.0)])
def test_a_whole_minute_of_saved_up_calls_does_not_hide_the_rate(slots: int, replies_s: tuple[float, float]) -> None:
    rng = random.Random(0)
    service = SimulatedService(rpm=600, burst=600, latency_s=lambda: rng.uniform(*replies_s))
    drive(Pace("auto", None), service, slots, until_s=10 * MINUTE_S)
    assert service.accepted_share(5 * MINUTE_S, 10 * MINUTE_S) >= 0.9
    assert service.rejected_share(MINUTE_S, 10 * MINUTE_S) <= 0.02


def test_once_the_rate_is_found_looking_for_a_higher_one_costs_few_refusals() -> None:
    service = SimulatedService(rpm=600, burst=600, latency_s=0.3)
    drive(Pace("auto", None), service, slots=256, until_s=20 * MINUTE_S)
    shares = [service.rejected_share(minute * MINUTE_S, (minute + 1) * MINUTE_S) for minute in range(1, 20)]
    assert max(shares) <= 0.02


@pytest.mark.parametrize("burst", [1, 60, 600])
def test_what_is_saved_up_between_batches_is_not_taken_for_a_higher_limit(burst: int) -> None:
    service, pace = SimulatedService(rpm=600, burst=burst, latency_s=0.2), Pace("auto", None)

    async def batches() -> None:
        driver, loop = Driver(pace, service, slots=256), asyncio.get_running_loop()
        for start_s in range(0, 20 * 60, 150):
            await asyncio.sleep(start_s - loop.time())
            await driver.run(start_s + 90.0)

    clock.run(batches())
    assert service.rejected_share(MINUTE_S, 20 * MINUTE_S) <= 0.012


@pytest.mark.parametrize("burst", [1, 60, 600])
def test_a_retry_after_that_is_exact_leaves_little_of_the_rate_unused(burst: int) -> None:
    service = JudgeService(rpm=600, burst=burst, latency_s=0.2)
    drive(Pace("auto", None), service, slots=256, until_s=10 * MINUTE_S)
    assert service.accepted_share(3 * MINUTE_S, 10 * MINUTE_S) >= 0.9
    assert service.rejected_share(MINUTE_S, 10 * MINUTE_S) <= 0.02


@pytest.mark.parametrize("burst", [1, 60])
def test_refusals_by_chance_do_not_wear_the_rate_down(burst: int) -> None:
    service = NoisyService(0.005, rpm=600, burst=burst)
    drive(Pace("auto", None), service, slots=256, until_s=20 * MINUTE_S)
    assert service.accepted_share(MINUTE_S, 20 * MINUTE_S) >= 0.9
    assert service.rejected_share(MINUTE_S, 20 * MINUTE_S) <= 0.02


@pytest.mark.parametrize("burst", [1, 60])
def test_a_limit_that_goes_back_up_is_found_within_seven_minutes(burst: int) -> None:
    service = SimulatedService(rpm=600, burst=burst)
    drive(Pace("auto", None), service, slots=256, until_s=28 * MINUTE_S, changes=[(600.0, 300.0), (1200.0, 600.0)])
    assert service.accepted_share(27 * MINUTE_S, 28 * MINUTE_S) >= 0.9
    assert service.rejected_share(MINUTE_S, 28 * MINUTE_S) <= 0.02


@pytest.mark.parametrize("seed", [7, 901])
@pytest.mark.parametrize("replies_s", [0.05, 0.5, 2.0])
def test_refusals_by_chance_of_a_service_without_a_limit_do_not_slow_it_down(replies_s: float, seed: int) -> None:
    service = Service(rpm=None, noise=0.05, replies_s=(replies_s, replies_s))
    log = run(Pace("auto", None), service, slots=64, until_s=MINUTE_S, seed=seed)
    assert log.accepted_share(64 / replies_s * 60.0, 0.0, MINUTE_S) >= 0.8


@pytest.mark.parametrize("seed", [7, 901])
@pytest.mark.parametrize("burst", [1, 10, 60])
def test_refusals_by_chance_do_not_hide_the_limit(burst: int, seed: int) -> None:
    log = run(Pace("auto", None), Service(burst=burst, noise=0.05), slots=256, until_s=20 * MINUTE_S, seed=seed)
    assert log.accepted_share(600.0, 5 * MINUTE_S, 20 * MINUTE_S) >= 0.8
    assert log.refused_share(5 * MINUTE_S, 20 * MINUTE_S) <= 0.1


# -- a limit without a burst --


def uneven(rpm: float, burst: float = 1) -> Setting:
    """A limit with little burst behind a network that delays calls by up to 0.2 s."""
    return Setting(service=Service(rpm=rpm, burst=burst, jitter_s=0.2), slots=1024, rpm=rpm)


@pytest.mark.parametrize("seed", [7, 901])
@pytest.mark.parametrize(("burst", "rpm"), [(1, 300.0), (1, 600.0), (1, 1200.0), (1, 3000.0), (2, 600.0), (2, 1200.0)])
def test_four_fifths_of_a_limit_that_uneven_delays_make_soft_are_used(burst: int, rpm: float, seed: int) -> None:
    figures = figures_of(uneven(rpm, burst), seed)
    assert figures.share >= 0.8
    assert figures.refused <= 0.86


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(("burst", "rpm"), [(1, 60.0), (1, 120.0), (1, 300.0), (1, 600.0), (2, 600.0)])
def test_if_few_calls_may_be_refused_a_soft_limit_is_used_about_as_well_as_by_the_best_constant_rate(
    burst: int, rpm: float, seed: int
) -> None:
    setting = uneven(rpm, burst)
    best, _ = best_constant_share(setting, seed)
    figures = figures_of(setting, seed, max_refused=0.2)
    assert figures.share >= min(0.88 * best, 0.8)
    assert figures.refused <= 0.2 or rpm == 60.0  # a search that takes minutes there


def test_while_a_soft_limit_is_pressed_statistics_say_what_is_accepted_and_how_much_is_refused() -> None:
    pace = Pace("auto", None)
    log = run(pace, Service(burst=1, jitter_s=0.2), slots=256, until_s=10 * MINUTE_S, seed=7)
    statistics = pace.statistics(10 * MINUTE_S)
    assert statistics.state == "pressing"
    assert statistics.rpm == pytest.approx(600.0 * log.accepted_share(600.0, 9 * MINUTE_S, 10 * MINUTE_S), rel=0.05)
    assert statistics.pressed_share == pytest.approx(log.refused_share(9 * MINUTE_S, 10 * MINUTE_S), abs=0.03)


@pytest.mark.parametrize(("gap_s", "counts_in_full"), [(0.001, False), (0.05, False), (0.2, False), (1.0, True)])
def test_while_a_soft_limit_is_pressed_a_refusal_counts_in_full_only_for_a_call_far_from_others(
    gap_s: float, counts_in_full: bool
) -> None:
    """Whether the rate or a lack of free slots decided when the call was sent: close behind another it is refused."""
    pace = Pace("auto", None)
    run(pace, Service(burst=1, jitter_s=0.2), slots=256, until_s=10 * MINUTE_S, seed=7)
    assert pace.statistics(0.0).state == "pressing"
    starts = [pace.start(11 * MINUTE_S + number * gap_s) for number in range(20)]
    assert {start.refusal_weight < 1.0 for start in starts[1:]} == {not counts_in_full}


def test_a_soft_limit_that_changes_while_it_is_pressed_is_used_again_within_minutes() -> None:
    service = Service(burst=1, jitter_s=0.2, changes=((10 * MINUTE_S, 1800.0), (20 * MINUTE_S, 300.0)))
    log = run(Pace("auto", None), service, slots=1024, until_s=30 * MINUTE_S, seed=7)
    assert log.accepted_share(1800.0, 12 * MINUTE_S, 20 * MINUTE_S) >= 0.8
    assert log.accepted_share(300.0, 26 * MINUTE_S, 30 * MINUTE_S) >= 0.5
    assert log.refused_share(22 * MINUTE_S, 30 * MINUTE_S) <= 0.86


def test_a_soft_limit_that_says_retry_after_is_not_pressed() -> None:
    pace = Pace("auto", None)
    service = Service(burst=1, jitter_s=0.2, retry_after=lambda wait_s: 1.0)
    log = run(pace, service, slots=256, until_s=20 * MINUTE_S, seed=7)
    assert not any(why.startswith("pressing") for _, _, why in pace.statistics(0.0).history)
    assert log.refused_share(5 * MINUTE_S, 20 * MINUTE_S) <= 0.2


@pytest.mark.parametrize("burst", [20, 60])
def test_two_agents_that_share_a_limit_with_a_burst_do_not_press_it(burst: int) -> None:
    service = SimulatedService(rpm=600, burst=burst, latency_s=0.3)
    paces = [Pace("auto", None), Pace("auto", None)]

    async def together() -> None:
        await asyncio.gather(*(Driver(pace, service, slots=64).run(20 * MINUTE_S) for pace in paces))

    clock.run(together())
    for pace in paces:
        assert not any(why.startswith("pressing") for _, _, why in pace.statistics(0.0).history)
    assert service.accepted_share(10 * MINUTE_S, 20 * MINUTE_S) >= 0.9
    assert service.rejected_share(10 * MINUTE_S, 20 * MINUTE_S) <= 0.2


class ClosingService(SimulatedService):
    """Refuses everything for ten minutes once it has refused 200 calls of the last minute."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rng = random.Random(0)
        self._closed_until = 0.0
        self.times_closed = 0

    async def call(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 0.2))
        now = asyncio.get_running_loop().time()
        if now >= self._closed_until:
            refused = sum(1 for at, accepted in self.arrivals[-400:] if not accepted and at >= now - MINUTE_S)
            if refused <= 200:
                await super().call()
                return
            self.times_closed += 1
            self._closed_until = now + 10 * MINUTE_S
        self.arrivals.append((now, False))
        raise RateLimited()


class WindowedService(SimulatedService):
    """Accepts 100 calls in each ten seconds, as soon as they come, and then refuses everything until the next ten."""

    async def call(self) -> None:
        now = asyncio.get_running_loop().time()
        since = 10.0 * (now // 10.0)
        in_window = itertools.takewhile(lambda arrival: arrival[0] >= since, reversed(self.arrivals))
        is_accepted = sum(accepted for _, accepted in in_window) < 100
        self.arrivals.append((now, is_accepted))
        await asyncio.sleep(0.2 if is_accepted else 0.05)
        if not is_accepted:
            raise RateLimited()


def test_a_limit_that_counts_in_windows_of_ten_seconds_is_used_without_hammering_at_a_closed_window() -> None:
    service = WindowedService()
    drive(Pace("auto", None), service, slots=256, until_s=20 * MINUTE_S)
    late = [accepted for at, accepted in service.arrivals if at >= 10 * MINUTE_S]
    assert late.count(True) >= 0.8 * 6000
    assert late.count(False) <= 0.4 * len(late)


@pytest.mark.parametrize("jitter_s", [0.0, 0.02])
@pytest.mark.parametrize("window_s", [10.0, 60.0])
@pytest.mark.parametrize("slides", [False, True])
def test_a_limit_that_counts_calls_in_windows_is_used(slides: bool, window_s: float, jitter_s: float) -> None:
    service = Service(window_s=window_s, slides=slides, jitter_s=jitter_s)
    log = run(Pace("auto", None), service, slots=256, until_s=20 * MINUTE_S, seed=7)
    assert log.accepted_share(600, 10 * MINUTE_S, 20 * MINUTE_S) >= 0.8
    assert log.refused_share(MINUTE_S, 20 * MINUTE_S) <= 0.1


def test_work_that_comes_in_phases_uses_a_window_of_a_minute() -> None:
    """A service that is closed as a phase ends is not taken for a slow one in the next."""
    service = Service(window_s=60.0, jitter_s=0.02)

    def is_busy(now: float) -> float:
        return now if now % 300.0 < 200.0 else 300.0 * (now // 300.0 + 1.0)

    log = run(Pace("auto", None), service, slots=256, until_s=20 * MINUTE_S, seed=7, is_busy=is_busy)
    assert log.accepted_share(600, 10 * MINUTE_S, 20 * MINUTE_S) >= 0.8 * 200.0 / 300.0


def test_a_service_that_closes_when_it_is_pressed_is_pressed_ever_more_rarely() -> None:
    service = ClosingService(rpm=600, burst=1, latency_s=0.3)
    pace = Pace("auto", None)
    pressed_at = set[float]()

    async def watch() -> None:
        while True:
            await asyncio.sleep(MINUTE_S)
            history = pace.statistics(0.0).history
            pressed_at.update(at for at, _, why in history if why.startswith("bursting: whether"))

    async def hours() -> None:
        watching = asyncio.create_task(watch())
        await Driver(pace, service, slots=256).run(240 * MINUTE_S)
        watching.cancel()

    clock.run(hours())
    waits_s = [b - a for a, b in itertools.pairwise(sorted(pressed_at))]
    assert 2 <= len(waits_s) <= 5
    assert waits_s[-1] >= 60 * MINUTE_S


@pytest.mark.parametrize("burst", [1, 10, 60, 200, 600])
def test_a_retry_after_of_half_a_minute_leaves_most_of_the_rate(burst: int) -> None:
    service = Service(burst=burst, retry_after=lambda wait_s: 30.0)
    log = run(Pace("auto", None), service, slots=256, until_s=20 * MINUTE_S)
    assert log.accepted_share(600.0, 10 * MINUTE_S, 20 * MINUTE_S) >= 0.8


@pytest.mark.parametrize("minute", [5, 11, 18])
@pytest.mark.parametrize("burst", [1, 10, 60, 600])
def test_of_a_limit_that_triples_most_is_used_in_the_next_five_minutes(burst: int, minute: int) -> None:
    service = Service(burst=burst, changes=((minute * MINUTE_S, 1800.0),))
    log = run(Pace("auto", None), service, slots=1024, until_s=(minute + 5) * MINUTE_S)
    assert log.accepted_share(1800.0, minute * MINUTE_S, (minute + 5) * MINUTE_S) >= 0.8


def test_a_service_that_refuses_everything_for_a_while_is_used_again_soon_after() -> None:
    service = SimulatedService(rpm=600, burst=60)
    pace = Pace("auto", None)
    drive(pace, service, slots=256, until_s=8 * MINUTE_S, changes=[(200.0, 1e-6), (320.0, 600.0)])
    assert service.accepted_share(7 * MINUTE_S, 8 * MINUTE_S) >= 0.9


def test_a_late_429_for_a_call_sent_before_the_cut_does_not_cut_again() -> None:
    pace = Pace("auto", None)
    flood = [pace.start(0.0, 0) for _ in range(200)]
    for start in flood[:6]:
        pace.limited(start, 0.1, None)
    rpm = pace.rpm
    assert rpm == 60.0
    for start in flood[6:]:
        pace.limited(start, 0.2, None)
    assert pace.rpm == rpm
    assert pace.statistics(0.2).num_limited == 200


def test_idle_time_teaches_nothing() -> None:
    pace = Pace("auto", None)
    for _ in range(6):
        pace.limited(pace.start(0.0, 0), 0.1, None)
    rpm = pace.rpm
    for minute in range(1, 60):
        pace.start(60.0 * minute, 0)
    assert pace.rpm == rpm


def test_statistics_say_what_changed_and_why() -> None:
    pace = Pace("auto", None)
    drive(pace, SimulatedService(rpm=600, burst=60), slots=256, until_s=MINUTE_S)
    statistics = pace.statistics(MINUTE_S)
    assert statistics.rpm == pytest.approx(600, rel=0.05)
    assert statistics.history[0][1:] == (60.0, "searching: refusals")
    assert statistics.history[-1][2] == "holding: measured by count"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "succeeded", "limited", "abandoned", "headers"]),
            st.floats(0.0, 100.0),
            st.integers(0, 5_000),
        ),
        max_size=200,
    )
)
def test_whatever_happens_the_next_call_may_start_at_a_finite_time(events: list[tuple[str, float, int]]) -> None:
    pace, now, out = Pace("auto", 60_000), 0.0, list[Start]()
    for name, seconds, number in events:
        now += seconds
        if name == "start":
            out.append(pace.start(now, number))
        elif name == "headers":
            pace.learn_headers({"x-ratelimit-limit-requests": str(number)}, now)
        elif out and name == "succeeded":
            pace.succeeded(out.pop(), now, number)
        elif out and name == "limited":
            pace.limited(out.pop(0), now, seconds if number % 2 else None)
        elif out:
            pace.abandoned(out.pop(), now)
        assert pace.ready_at(now, number) < math.inf
