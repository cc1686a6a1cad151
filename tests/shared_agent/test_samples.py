"""Who wants which verdict: rollouts that several clients ask about, and those that nobody wants any longer."""

from __future__ import annotations

from rollouts import group, rollout

import rewardflow as rf
from rewardflow.shared_agent.host_clients import HostClient
from rewardflow.shared_agent.messages import Packed, pack_rollout, unpack_reward
from rewardflow.shared_agent.samples import Samples


def asked(*rollouts: rf.Rollout, first: int = 1) -> list[tuple[int, Packed]]:
    return [(first + i, pack_rollout(one, with_tokens=False)) for i, one in enumerate(rollouts)]


def told(client: HostClient) -> dict[int, rf.Reward]:
    verdicts = client.outbox.hand_over(halt=None, sent_s=0.0).verdicts
    return {serial: unpack_reward(packed) for serial, packed, _ in verdicts}


def test_a_rollout_that_two_clients_ask_about_is_judged_once_and_both_are_told_the_first_word() -> None:
    samples, one, two = Samples(), HostClient("1", "run", 1.0), HostClient("2", "run", 1.0)
    question = rollout("a")
    assert samples.take_in(one, asked(question)) == [question]
    assert samples.take_in(one, asked(question)) == []  # the message came twice
    assert samples.take_in(two, asked(question, first=7)) == []
    samples.tell("run", question, rf.Reward(value=1.0), 0.0)
    samples.tell("run", question, rf.Reward(value=2.0), 0.0)
    assert {serial: reward.value for serial, reward in told(one).items()} == {1: 1.0}
    assert {serial: reward.value for serial, reward in told(two).items()} == {7: 1.0}


def test_runs_may_ask_about_different_rollouts_at_one_place_and_a_run_may_not() -> None:
    samples, one, other = Samples(), HostClient("1", "run", 1.0), HostClient("2", "other run", 1.0)
    assert samples.take_in(one, asked(rollout("a"), rollout("b"))) == [rollout("a")]
    assert samples.take_in(other, asked(rollout("b"))) == [rollout("b")]
    refused = told(one)
    assert list(refused) == [2]
    assert refused[2].kind == "user_error"
    assert "a run may ask about one rollout at a place at a time" in (refused[2].error or "")


def test_a_group_is_named_when_the_last_that_wants_one_of_its_rollouts_is_gone() -> None:
    samples, one, two = Samples(), HostClient("1", "run", 1.0), HostClient("2", "run", 1.0)
    first, second = group("g", "a", "b")
    samples.take_in(one, asked(first, second))
    samples.take_in(two, asked(first))
    assert list(samples.withdraw(two, [1])) == []
    assert list(samples.withdraw(one, [1])) == [("run", 0, "g")]
    assert [samples.is_wanted("run", rollout) for rollout in (first, second)] == [False, True]
    assert list(samples.withdraw(one, [1])) == []
    samples.tell("run", first, rf.Reward(value=1.0), 0.0)
    assert told(one) == told(two) == {}
