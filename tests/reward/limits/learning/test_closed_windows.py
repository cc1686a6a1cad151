"""When refusals mean that a service is closed, and what it accepts from one opening to the next."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from rewardflow.reward.limits.learning.closed_windows import ClosedWindows, Opening

ECHO_S = 0.05
LISTEN_S = 0.06


class Client:
    """Sends calls one after another; each is refused or not, which the client hears before it sends the next."""

    def __init__(self) -> None:
        self.windows = ClosedWindows()
        self.number = 0
        self.now = 0.0

    def send(self, *, refused: bool, after_s: float) -> Opening | None:
        self.now += after_s
        self.number += 1
        opening = self.windows.sent(self.number, self.now, LISTEN_S)
        if refused:
            self.windows.refused(self.number, self.now, self.now)
        return opening

    def accepted(self, count: int, after_s: float = 0.1) -> list[Opening]:
        return [one for _ in range(count) if (one := self.send(refused=False, after_s=after_s)) is not None]

    def refused(self, count: int, after_s: float = 0.1) -> list[Opening]:
        return [one for _ in range(count) if (one := self.send(refused=True, after_s=after_s)) is not None]


def minutes(client: Client, rate: float, count: int) -> Iterator[Opening]:
    """Sends at a constant rate to a service that accepts 600 calls in each minute, as they come."""
    for _ in range(count):
        yield from client.accepted(600, 1.0 / rate)
        yield from client.refused(round(60 * rate) - 600, 1.0 / rate)


@pytest.mark.parametrize("rate", [11.0, 20.0, 200.0])
def test_from_one_opening_to_the_next_a_service_accepts_what_its_limit_allows(rate: float) -> None:
    first, *others = minutes(Client(), rate, count=5)
    assert first.rate is None, "the first closure has no opening before it"
    assert [one.rate for one in others] == pytest.approx([10.0] * 3)


def test_a_service_that_refuses_calls_among_others_is_not_closed() -> None:
    for share in (0.05, 0.3, 0.6, 0.85):
        client, rng = Client(), random.Random(share)
        assert not any(client.send(refused=rng.random() < share, after_s=0.1) for _ in range(20_000)), share


def test_a_limit_that_was_lowered_looks_closed_for_little_more_than_a_minute() -> None:
    client = Client()
    client.accepted(600)
    lowered_s = client.now
    sends = ((client.send(refused=number % 100 != 0, after_s=0.1), client.now) for number in range(1, 10_000))
    assert all(now - lowered_s < 90.0 for opening, now in sends if opening is not None)


def test_a_slow_limit_that_accepts_a_call_now_and_then_is_not_closed() -> None:
    client = Client()
    assert not client.accepted(3)
    for _ in range(200):
        assert not client.refused(10, after_s=0.5)
        assert not client.accepted(1)


def test_calls_that_cross_each_other_as_a_window_closes_hide_no_closure() -> None:
    client = Client()
    client.accepted(120, 0.01)
    for _ in range(15):
        client.accepted(1, 0.001)
        client.refused(2, 0.001)
    client.refused(12, 1.0)
    assert client.accepted(2)


def test_a_window_that_slides_opens_for_a_few_calls_and_stays_closed() -> None:
    client = Client()
    list(minutes(client, 20.0, count=2))
    client.accepted(600, 0.05)
    client.refused(100)
    client.accepted(3)
    client.refused(1)
    opening = client.accepted(2)[0]
    assert opening.rate is not None
    assert 5.0 < opening.rate < 15.0, "the few calls between are no period of their own"


def test_refusals_that_arrive_late_take_back_that_a_call_was_accepted() -> None:
    windows = ClosedWindows()
    for number in range(1, 1001):
        windows.sent(number, 0.0, 0.0)
    for number in random.Random(1).sample(range(1, 1001), 995):
        windows.refused(number, 0.0, 0.0)
    assert not any(windows.sent(1000 + second, float(second), 0.0) for second in range(1, 4))
    for second in range(4, 40):
        windows.refused(1000 + second, float(second), float(second))
        assert windows.sent(1001 + second, second + 0.5, 0.0) is None


def test_time_without_calls_lowers_no_rate() -> None:
    client = Client()
    list(minutes(client, 20.0, count=3))
    client.accepted(1, after_s=3600.0)
    client.accepted(599, 0.05)
    client.refused(600, 0.05)
    assert [one.rate for one in client.accepted(5)] == pytest.approx([10.0], rel=0.01)
