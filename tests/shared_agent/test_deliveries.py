"""What a client is told: everything once, however often a message is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.shared_agent.deliveries import Outbox
from rewardflow.shared_agent.messages import Delivery

steps = st.lists(st.sampled_from(["verdict", "news", "delivered", "lost", "hello"]), max_size=40)


@given(steps)
def test_verdicts_and_news_arrive_once_and_in_order_whichever_messages_are_lost(steps: list[str]) -> None:
    outbox, put, put_events = Outbox(), list[int](), list[int]()
    got, got_events, confirmed = list[int](), list[int](), 0

    def take() -> Delivery:
        outbox.confirm(confirmed)
        return outbox.hand_over(halt=None, sent_s=0.0)

    for number, step in enumerate([*steps, "delivered"]):
        match step:
            case "verdict":
                outbox.put((number, (), 0.0))
                put.append(number)
            case "news":
                outbox.put_event((number,))
                put_events.append(number)
            case "lost":
                take()
            case "delivered":
                delivery = take()
                confirmed = delivery.number
                got += [serial for serial, _, _ in delivery.verdicts]
                got_events += [one for (one,) in delivery.events]
            case "hello":  # a client that had to find its host again, and says so before it has confirmed anything
                outbox.confirm(confirmed)
                outbox.take_back()
                confirmed = 0
    assert (got, got_events) == (put, put_events)
    assert sorted(outbox.confirm(confirmed)) == [serial for serial, _, _ in delivery.verdicts]
    assert outbox.num_verdicts == 0


def test_of_news_only_so_many_are_kept_and_the_others_are_counted_also_if_the_message_is_lost() -> None:
    outbox = Outbox(max_events=3)
    for number in range(5):
        outbox.put_event((number,))
    assert not outbox.has_verdicts
    outbox.hand_over(halt=None, sent_s=0.0)
    outbox.put_event((5,))
    outbox.confirm(0)
    again = outbox.hand_over(halt=None, sent_s=0.0)
    assert again.events == [(0,), (1,), (2,), (5,)]
    assert again.num_events_lost == 2
