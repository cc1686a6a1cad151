"""Answers of a call that failed are kept for its next attempt, and only for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from rollouts import singles

import rewardflow as rf
from rewardflow import clock
from rewardflow.services.unfinished_calls import UnfinishedCalls, fill_missing


def test_after_a_failure_no_other_question_starts_and_answers_are_kept() -> None:
    asked: list[int] = []
    known: dict[int, str] = {}
    failing = {1}

    async def answer(key: int) -> str:
        asked.append(key)
        await asyncio.sleep(1.0)
        if key in failing:
            raise rf.ServiceError("down")
        return str(key)

    with pytest.raises(rf.ServiceError, match="down"):
        clock.run(fill_missing(range(6), known, answer, 2))
    assert (asked, known) == ([0, 1], {0: "0"})
    failing.clear()
    clock.run(fill_missing(range(6), known, answer, 2))
    assert known == {key: str(key) for key in range(6)}
    assert asked.count(0) == 1


def fail(calls: UnfinishedCalls[str, Any], name: str, **answers: Any) -> None:
    """Makes an attempt at a call that gets these answers and then fails."""
    with contextlib.suppress(rf.ServiceError), calls.of_call(singles(name)) as known:
        known.update(answers)
        raise rf.ServiceError("down")


def known_of(calls: UnfinishedCalls[str, Any], name: str) -> dict[str, Any]:
    """Finishes the call, and returns what was known of it."""
    with calls.of_call(singles(name)) as known:
        return dict(known)


def test_a_failed_call_is_remembered_until_it_is_finished() -> None:
    calls: UnfinishedCalls[str, Any] = UnfinishedCalls()
    fail(calls, "one", a=1)
    fail(calls, "one", b=2)
    fail(calls, "without an answer")
    assert len(calls) == 1
    assert known_of(calls, "one") == {"a": 1, "b": 2}
    assert (len(calls), known_of(calls, "one")) == (0, {})
    fail(calls, "one", a=1)
    calls.clear()
    assert (len(calls), known_of(calls, "one")) == (0, {})


def test_the_number_of_calls_in_flight_makes_none_of_them_forgotten() -> None:
    calls: UnfinishedCalls[str, Any] = UnfinishedCalls()
    names = [str(i) for i in range(5000)]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(calls.of_call(singles(name)))["a"] = name
    for name in names:
        fail(calls, name, a=name)
    assert [known_of(calls, name) for name in names] == [{"a": name} for name in names]


def test_the_oldest_failed_calls_are_forgotten_if_their_answers_are_too_large() -> None:
    calls: UnfinishedCalls[str, Any] = UnfinishedCalls(max_bytes=100_000)
    for i in range(5):
        fail(calls, str(i), a=rf.Reward(value=1.0, explanation="x" * 30_000, extras={"parts": ["y" * 10_000]}))
    assert [bool(known_of(calls, str(i))) for i in range(5)] == [False, False, False, True, True]
    for i in range(5):
        fail(calls, str(i), a=1)
    assert len(calls) == 5


def test_attempts_at_the_same_time_share_answers_and_one_that_finishes_ends_the_call() -> None:
    calls: UnfinishedCalls[str, Any] = UnfinishedCalls()
    with contextlib.suppress(rf.ServiceError), calls.of_call(singles("one")) as first:
        first["a"] = 1
        assert known_of(calls, "one") == {"a": 1}
        raise rf.ServiceError("cancelled, because the hedge won")
    assert len(calls) == 0
