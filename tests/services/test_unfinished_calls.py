"""Answers of a call that failed are kept for its next attempt, and only for it."""

from __future__ import annotations

import asyncio

import pytest
from rollouts import singles

import rewardflow as rf
from rewardflow import clock
from rewardflow.services.unfinished_calls import MAX_CALLS, UnfinishedCalls, fill_missing


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


def test_only_the_latest_unfinished_calls_are_remembered() -> None:
    calls: UnfinishedCalls[str, int] = UnfinishedCalls()
    calls.of_call(singles("first"))["a"] = 1
    assert calls.of_call(singles("first")) == {"a": 1}
    for i in range(MAX_CALLS):
        calls.of_call(singles(str(i)))
    assert len(calls) == MAX_CALLS
    assert calls.of_call(singles("first")) == {}
    calls.finish(singles("first"))
    assert len(calls) == MAX_CALLS - 1
    calls.clear()
    assert len(calls) == 0
