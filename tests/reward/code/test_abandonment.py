"""A thread learns that nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rewardflow.reward.code.abandonment import Abandonment, current_abandonment, in_call, wait_for_thread


def test_giving_up_stops_what_the_thread_waits_for_and_says_its_name() -> None:
    abandonment, stopped = Abandonment(), threading.Event()
    with abandonment.stopped_by(stopped.set, "the rule regex"):
        assert abandonment.abandon() == "the rule regex"
    assert stopped.is_set()
    assert abandonment.is_abandoned


def test_nothing_is_stopped_after_its_block() -> None:
    abandonment, stopped = Abandonment(), threading.Event()
    with abandonment.stopped_by(stopped.set, "it"):
        pass
    assert abandonment.abandon() == ""
    assert not stopped.is_set()


def test_what_begins_after_the_caller_gave_up_is_stopped_at_once() -> None:
    abandonment, stopped = Abandonment(), threading.Event()
    abandonment.abandon()
    with abandonment.stopped_by(stopped.set, "it"):
        assert stopped.is_set()


def test_only_code_inside_a_call_can_be_given_up() -> None:
    assert current_abandonment() is None
    with in_call(own := Abandonment()):
        assert current_abandonment() is own
    assert current_abandonment() is None


def test_cancelling_the_wait_for_a_thread_stops_what_it_waits_for() -> None:
    begun, stopped = threading.Event(), threading.Event()

    def work() -> None:
        abandonment = current_abandonment()
        assert abandonment is not None
        with abandonment.stopped_by(stopped.set, "it"):
            begun.set()
            stopped.wait()

    async def main() -> None:
        task = asyncio.ensure_future(wait_for_thread(work))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())  # ends only if the thread does
    assert stopped.is_set()
