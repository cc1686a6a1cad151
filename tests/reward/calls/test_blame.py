"""Rollouts whose calls always fail cost nobody else a verdict, and an outage costs no rollout an attempt."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from agent_at_work import now
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import numbered
from scoring import score

import rewardflow as rf
from rewardflow import clock


class Poisoned:
    """A judge that never answers about some rollouts; between two times it answers nobody."""

    def __init__(self, poison: set[int], down_s: tuple[float, float] = (0.0, 0.0), *, raises: bool = False) -> None:
        self.poison = poison
        self.down_s = down_s
        self.raises = raises
        self.num_asked: Counter[int] = Counter()

    async def compute_score(self, solution_str: str) -> float:
        number = int(solution_str)
        self.num_asked[number] += 1
        is_down = self.down_s[0] <= now() < self.down_s[1]
        if number in self.poison or is_down:
            if self.raises:
                await asyncio.sleep(0.5)
                raise rf.ServiceError("500", status=500)
            await asyncio.sleep(1e6)
        await asyncio.sleep(1.0)
        if self.down_s[0] <= now() < self.down_s[1]:
            raise rf.ServiceError("connection reset")
        return 1.0


def kinds_of(judge: Poisoned, num_rollouts: int, **options: object) -> dict[int, str | None]:
    verdicts = score(judge, numbered(num_rollouts), **options)
    return {number: verdict.kind for number, verdict in enumerate(verdicts)}


@pytest.mark.parametrize("endpoints", [(), ("a", "b", "c")])
@pytest.mark.parametrize("num_poisoned", [16, 40, 200])
def test_a_block_of_rollouts_that_hang_is_no_outage(num_poisoned: int, endpoints: tuple[str, ...]) -> None:
    poison = set(range(num_poisoned))
    judge = Poisoned(poison)
    kinds = kinds_of(judge, 400, max_concurrency=16, timeout_s=60.0, retry_budget=1.0, endpoints=endpoints)
    assert kinds == {number: "timeout" if number in poison else None for number in range(400)}
    assert max(judge.num_asked.values()) <= 20, "no attempt is free for ever"


@pytest.mark.parametrize("raises", [False, True])
def test_one_sample_in_eight_that_always_fails_does_not_end_the_batch_once_the_others_are_done(raises: bool) -> None:
    poison = set(range(7, 400, 8))
    judge = Poisoned(poison, raises=raises)
    kinds = kinds_of(judge, 400, max_concurrency=16, timeout_s=60.0)
    assert kinds == {
        number: ("service" if raises else "timeout") if number in poison else None for number in range(400)
    }


def test_a_batch_that_ends_with_a_block_of_rollouts_that_hang_ends_without_them() -> None:
    poison = set(range(360, 400))
    kinds = kinds_of(Poisoned(poison), 400, max_concurrency=16, timeout_s=60.0)
    assert {number for number, kind in kinds.items() if kind == "timeout"} == poison
    assert set(kinds.values()) == {"timeout", None}


def test_hedges_of_rollouts_that_hang_are_no_outage_either() -> None:
    poison = set(range(40))
    kinds = kinds_of(Poisoned(poison), 400, max_concurrency=16, timeout_s=60.0, hedge_quantile=0.9, hedge_share=0.5)
    assert {number for number, kind in kinds.items() if kind == "timeout"} == poison


@pytest.mark.parametrize(("seed", "num_poisoned", "slots"), [(41, 58, 2), (98, 55, 1), (103, 59, 1)])
def test_rollouts_that_hang_do_not_go_from_one_broken_endpoint_to_the_next_for_ever(
    seed: int, num_poisoned: int, slots: int
) -> None:
    poison = set(random.Random(seed).sample(range(60), num_poisoned))
    judge = Poisoned(poison)
    endpoints = ("a", "b", "c")
    kinds = kinds_of(judge, 60, max_concurrency=slots, timeout_s=20.0, endpoints=endpoints, outage_give_up_s=900.0)
    assert kinds == {number: "timeout" if number in poison else None for number in range(60)}
    assert max(judge.num_asked.values()) <= 60


@settings(max_examples=40)
@given(
    poison=st.sets(st.integers(0, 59), max_size=59),
    slots=st.integers(1, 70),
    num_endpoints=st.sampled_from([0, 0, 3]),
    seed=st.integers(0, 1000),
)
def test_whatever_rollouts_hang_all_others_are_scored(
    poison: set[int], slots: int, num_endpoints: int, seed: int
) -> None:
    judge = Poisoned(poison)
    names = tuple(f"endpoint {number}" for number in range(num_endpoints))

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(
            judge, max_concurrency=slots, timeout_s=20.0, endpoints=names, outage_give_up_s=900.0
        ) as agent:
            return await agent.submit(numbered(60)).all()

    groups = clock.run(main(), seed=seed)
    kinds = {int(group.group_id): group.rewards[0].kind for group in groups}
    assert kinds == {number: "timeout" if number in poison else None for number in range(60)}


@settings(max_examples=40)
@given(
    slots=st.integers(1, 70),
    done_share=st.floats(0.0, 0.6),
    lasts_s=st.floats(1.0, 2000.0),
    raises=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_an_outage_that_ends_uses_up_no_attempt(
    slots: int, done_share: float, lasts_s: float, raises: bool, seed: int
) -> None:
    """The outage begins while more rollouts are left than the breaker's window has places."""
    since_s = done_share * 200 / slots
    judge = Poisoned(set(), (since_s, since_s + lasts_s), raises=raises)

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(
            judge, max_concurrency=slots, max_attempts=3, timeout_s=20.0, outage_give_up_s=3000.0
        ) as agent:
            return await agent.submit(numbered(200)).all()

    groups = clock.run(main(), seed=seed)
    assert {group.rewards[0].kind for group in groups} == {None}


@settings(max_examples=60)
@given(
    num_left=st.integers(3, 19),
    slots=st.integers(1, 30),
    lasts_s=st.floats(5.0, 900.0),
    raises=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_an_outage_with_fewer_rollouts_left_than_the_window_uses_up_no_attempt(
    num_left: int, slots: int, lasts_s: float, raises: bool, seed: int
) -> None:
    judge = Poisoned(set(), (100.0, 100.0 + lasts_s), raises=raises)

    async def main() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(
            judge, max_concurrency=slots, max_attempts=3, timeout_s=20.0, outage_give_up_s=3000.0
        ) as agent:
            done = await agent.submit(numbered(60)).all()
            await asyncio.sleep(100.0 - now())
            return [*done, *await agent.submit(numbered(num_left, step=1)).all()]

    groups = clock.run(main(), seed=seed)
    assert {group.rewards[0].kind for group in groups} == {None}


@pytest.mark.parametrize("raises", [False, True])
def test_one_prompt_alone_that_always_fails_is_no_outage(raises: bool) -> None:
    judge = Poisoned({59}, raises=raises)

    async def main() -> tuple[set[str | None], float]:
        async with rf.RewardAgent(judge, max_concurrency=60, timeout_s=20.0, max_attempts=3) as agent:
            groups = await agent.submit(numbered(60)).all()
            return {group.rewards[0].kind for group in groups}, now()

    kinds, took_s = clock.run(main())
    assert kinds == {None, "service" if raises else "timeout"}
    assert took_s < 100.0
    assert judge.num_asked[59] == 3


def test_prompts_that_often_fail_by_themselves_are_no_outage_when_they_are_left() -> None:
    judge = Poisoned(set(range(0, 60, 2)))

    async def main() -> float:
        async with rf.RewardAgent(judge, max_concurrency=60, timeout_s=20.0, max_attempts=3) as agent:
            await agent.submit(numbered(60)).all()
            begins_s = now()
            await agent.submit(numbered(3, step=1)).all()
            return now() - begins_s

    assert clock.run(main()) < 100.0


def test_a_service_that_never_answered_a_few_rollouts_fails_them_soon() -> None:
    judge = Poisoned(set(), (0.0, 1e6), raises=True)
    assert kinds_of(judge, 5, max_concurrency=4) == dict.fromkeys(range(5), "service")
    assert max(judge.num_asked.values()) == 3
