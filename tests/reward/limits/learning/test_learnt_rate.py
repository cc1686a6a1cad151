"""Learning from a given schedule of refusals; `test_pace.py` runs the same code against a simulated service."""

from __future__ import annotations

from rewardflow.reward.limits.learning.learnt_rate import LearntRate
from rewardflow.reward.limits.learning.refusals import Refusals


class Sender:
    """Sends at exactly the learnt rate; a rule decides at once which calls are refused."""

    def __init__(self, learnt: LearntRate) -> None:
        self.learnt = learnt
        self.now = 0.0

    @property
    def rate(self) -> float:
        assert self.learnt.rate is not None
        return self.learnt.rate

    def send(self) -> tuple[Refusals, float, int, float]:
        rate = self.learnt.rate
        if rate is not None:
            self.now += 1.0 / rate
            self.learnt.sent(self.now, 1.0 / rate)
        refusals = self.learnt.current
        refusals.num_sent += 1
        return refusals, self.now, refusals.num_sent, rate or float("inf")

    def send_refused(self) -> None:
        self.learnt.refused(*self.send(), self.now)

    def send_accepted_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.send()


def searching() -> Sender:
    sender = Sender(LearntRate())
    for _ in range(6):
        sender.send_refused()
    return sender


def found() -> Sender:
    """Holds a rate that was counted: every eleventh call is refused."""
    sender = searching()
    sender.send_accepted_for(8.0)
    while sender.learnt.state != "holding":
        for _ in range(10):
            sender.send()
        sender.send_refused()
    return sender


def test_without_a_refusal_there_is_no_limit() -> None:
    sender = Sender(LearntRate())
    for _ in range(1000):
        sender.send()
    assert sender.learnt.rate is None


def test_refusals_begin_a_search_at_a_low_rate_that_doubles() -> None:
    sender = searching()
    assert sender.learnt.rate == 1.0
    sender.send_accepted_for(8.0)
    assert sender.learnt.rate is not None
    assert sender.learnt.rate >= 4.0


def test_a_late_refusal_from_before_the_cut_does_not_cut_again() -> None:
    sender = Sender(LearntRate())
    flood = [sender.send() for _ in range(100)]
    for call in flood[:6]:
        sender.learnt.refused(*call, sender.now)
    sender.send_accepted_for(5.0)
    rate = sender.learnt.rate
    for call in flood[6:]:
        sender.learnt.refused(*call, sender.now)
    assert sender.learnt.rate == rate


def test_while_everything_is_refused_calls_become_rare_and_never_stop() -> None:
    sender = searching()
    for _ in range(100):
        sender.send_refused()
    assert sender.learnt.rate is not None
    assert 1 / 31 < sender.learnt.rate < 1 / 10


def test_twenty_seconds_without_refusals_finds_a_fast_service() -> None:
    sender = searching()
    sender.send_accepted_for(20.0)
    assert sender.learnt.rate is not None
    assert sender.learnt.rate > 100.0


def test_an_announced_rate_is_held_and_not_probed() -> None:
    sender = Sender(LearntRate())
    sender.learnt.hint(10.0, 0.0)
    sender.send_accepted_for(3600.0)
    assert sender.learnt.state == "holding"
    assert sender.learnt.rate == 9.7


def test_an_announcement_that_refusals_overruled_is_not_believed_again() -> None:
    sender = Sender(LearntRate())
    sender.learnt.hint(10.0, 0.0)
    while sender.learnt.rate is not None and sender.learnt.rate > 6.0:
        sender.send_refused()
        sender.send()
    rate = sender.learnt.rate
    sender.learnt.hint(10.0, sender.now)
    assert sender.learnt.rate == rate
    sender.learnt.hint(20.0, sender.now)
    assert sender.learnt.rate == 0.97 * 20.0


def test_most_calls_refused_halves_the_rate_whatever_was_accepted_before() -> None:
    sender = searching()
    sender.send_accepted_for(13.0)
    rate = sender.rate
    for _ in range(6):
        sender.send_refused()
    assert sender.rate == rate / 2


def test_a_refusal_now_and_then_changes_no_rate_that_is_held() -> None:
    sender = Sender(LearntRate())
    sender.learnt.hint(10.0, 0.0)
    for _ in range(50):
        sender.send_accepted_for(15.0)
        sender.send_refused()
    assert sender.rate == 9.7


def test_more_refusals_than_chance_lower_a_rate_that_is_held() -> None:
    sender = Sender(LearntRate())
    sender.learnt.hint(10.0, 0.0)
    for _ in range(8):
        sender.send_accepted_for(1.0)
        sender.send_refused()
    assert 8.0 < sender.rate < 9.6


def test_a_climb_does_not_go_far_before_all_that_was_saved_up_in_idle_time_is_spent() -> None:
    """A raised limit is found only after more calls were accepted than the service could have saved up."""
    sender = found()
    held = sender.rate
    sender.now += 3600.0
    sender.send_accepted_for(160.0)
    assert held < sender.rate <= 1.5 * held
    sender.send_accepted_for(120.0)
    assert sender.rate > 2.0 * held


def test_the_history_of_changes_is_short_and_says_why() -> None:
    sender = searching()
    for _ in range(3000):
        sender.send_refused()
        sender.send()
    history = sender.learnt.history
    assert len(history) <= 64
    assert all(rpm > 0 and reason for _, rpm, reason in history)
