from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from rewardflow import clock
from rewardflow.errors import InvalidInput, ServiceError
from rewardflow.reward.limits.concurrency import Concurrency
from rewardflow.reward.simulated_service import SimulatedService


class Driver:
    """Keeps as many calls in flight as the limit allows, and notes when each was answered and what the limit was."""

    def __init__(self, concurrency: Concurrency, service: SimulatedService, max_in_flight: int = 100_000) -> None:
        self.concurrency = concurrency
        self.service = service
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        self.ended = asyncio.Event()
        self.answers: list[tuple[float, int]] = []

    async def run(self, until_s: float, changes: Sequence[tuple[float, Callable[[], None]]] = ()) -> None:
        loop = asyncio.get_running_loop()
        for at, change in changes:
            loop.call_at(at, change)
        async with asyncio.TaskGroup() as group:
            while loop.time() < until_s:
                while self.in_flight < min(self.concurrency.limit, self.max_in_flight):
                    self.in_flight += 1
                    group.create_task(self._call())
                self.ended.clear()
                await self.ended.wait()

    async def _call(self) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            await self.service.call()
        except ServiceError:
            self.concurrency.overloaded(loop.time(), self.in_flight)
        else:
            self.concurrency.succeeded(loop.time(), loop.time() - started_at, self.in_flight)
            self.answers.append((loop.time(), self.concurrency.limit))
        self.in_flight -= 1
        self.ended.set()

    def throughput(self, since_s: float, until_s: float) -> float:
        return sum(since_s < at <= until_s for at, _ in self.answers) / (until_s - since_s)

    def mean_limit(self, since_s: float, until_s: float) -> float:
        limits = [limit for at, limit in self.answers if since_s < at <= until_s]
        return sum(limits) / len(limits)


def set_down(service: SimulatedService, is_down: bool) -> Callable[[], None]:
    return lambda: setattr(service, "is_down", is_down)


def test_a_fixed_limit_stays() -> None:
    concurrency = Concurrency(64)
    for second in range(100):
        concurrency.overloaded(float(second), 64)
        concurrency.succeeded(float(second), 50.0, 64)
    assert concurrency.limit == 64
    assert concurrency.statistics().history == ()


@pytest.mark.parametrize("capacity", [16, 64, 200])
@pytest.mark.parametrize("latency_s", [1.0, 20.0])
def test_it_settles_a_little_above_what_a_queueing_service_can_take(capacity: int, latency_s: float) -> None:
    driver = Driver(Concurrency("auto"), SimulatedService(latency_s=latency_s, capacity=capacity))
    end = 200 * latency_s
    clock.run(driver.run(end))
    assert driver.throughput(end / 2, end) >= 0.95 * capacity / latency_s
    assert capacity <= driver.mean_limit(end / 2, end) <= 3 * capacity


def test_it_settles_with_random_latencies_too() -> None:
    draw = random.Random(1)
    driver = Driver(Concurrency("auto"), SimulatedService(latency_s=lambda: draw.uniform(1.0, 40.0), capacity=64))
    clock.run(driver.run(4000.0))
    assert driver.throughput(2000.0, 4000.0) >= 0.95 * 64 / 20.5
    assert 64 <= driver.mean_limit(2000.0, 4000.0) <= 3 * 64


@pytest.mark.parametrize("seed", range(4))
def test_random_latencies_alone_do_not_look_like_queueing(seed: int) -> None:
    draw = random.Random(seed)
    driver = Driver(Concurrency("auto"), SimulatedService(latency_s=lambda: draw.uniform(1.0, 40.0)))
    clock.run(driver.run(1500.0))
    assert driver.concurrency.limit == 1024
    assert all(reason == "doubling" for _, _, reason in driver.concurrency.statistics().history)


def test_batches_with_idle_time_between_do_not_look_like_queueing() -> None:
    draw = random.Random(0)
    concurrency = Concurrency("auto")

    async def main() -> None:
        service = SimulatedService(latency_s=lambda: draw.uniform(1.0, 40.0))
        loop = asyncio.get_running_loop()
        for _ in range(20):
            await Driver(concurrency, service).run(loop.time() + 60.0)
            await asyncio.sleep(300.0)

    clock.run(main())
    assert not [reason for _, _, reason in concurrency.statistics().history if reason == "queueing"]


def test_the_limit_grows_only_while_it_is_used() -> None:
    driver = Driver(Concurrency("auto"), SimulatedService(latency_s=1.0), max_in_flight=10)
    clock.run(driver.run(300.0))
    assert driver.concurrency.limit == 16


def test_the_limit_never_passes_its_maximum() -> None:
    driver = Driver(Concurrency("auto", maximum=40), SimulatedService(latency_s=1.0))
    clock.run(driver.run(100.0))
    assert driver.concurrency.limit == 40


def test_many_failures_of_one_round_trip_shrink_the_limit_once() -> None:
    driver = Driver(Concurrency("auto", maximum=64), SimulatedService(latency_s=10.0))
    clock.run(driver.run(400.0))
    assert driver.concurrency.limit == 64
    for _ in range(64):
        driver.concurrency.overloaded(401.0, 64)
    assert driver.concurrency.limit == 32
    driver.concurrency.overloaded(412.0, 32)
    assert driver.concurrency.limit == 16


def test_the_limit_never_falls_below_one() -> None:
    concurrency = Concurrency("auto")
    for second in range(0, 1000, 10):
        concurrency.overloaded(float(second), 1)
    assert concurrency.limit == 1


def test_it_recovers_after_a_burst_of_failures() -> None:
    service = SimulatedService(latency_s=1.0, capacity=64)
    driver = Driver(Concurrency("auto"), service)
    clock.run(driver.run(200.0, [(100.0, set_down(service, True)), (105.0, set_down(service, False))]))
    assert "overloaded" in [reason for _, _, reason in driver.concurrency.statistics().history]
    assert driver.throughput(150.0, 200.0) >= 0.95 * 64


def test_a_service_that_became_slower_for_good_is_not_mistaken_for_a_queue_for_ever() -> None:
    latency_s = 1.0
    driver = Driver(Concurrency("auto", maximum=128), SimulatedService(latency_s=lambda: latency_s))

    def slow_down() -> None:
        nonlocal latency_s
        latency_s = 5.0

    clock.run(driver.run(400.0, [(100.0, slow_down)]))
    assert driver.concurrency.limit == 128


def test_statistics_keep_a_short_history() -> None:
    driver = Driver(Concurrency("auto"), SimulatedService(latency_s=1.0, capacity=16))
    clock.run(driver.run(2000.0))
    statistics = driver.concurrency.statistics()
    assert len(statistics.history) <= 64
    assert statistics.limit == driver.concurrency.limit == statistics.history[-1][1]
    assert statistics.lowest_latency_s == pytest.approx(1.0, rel=0.5)


def test_limits_must_be_at_least_one() -> None:
    with pytest.raises(InvalidInput, match="limit must be at least 1"):
        Concurrency(0)
    with pytest.raises(InvalidInput, match="maximum must be at least 1"):
        Concurrency("auto", maximum=0)
