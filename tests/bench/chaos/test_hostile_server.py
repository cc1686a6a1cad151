"""The hostile server misbehaves in at least sixty ways, and the judge concludes from each what it must."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rewardflow.bench.chaos.exchange import SCALE, Carries
from rewardflow.bench.chaos.hostile_server import MISBEHAVIOURS, HostileServer, rollout_of
from rewardflow.bench.chaos.judge_setup import judge_at
from rewardflow.bench.chaos.truth_check import verdicts_by_number
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Reward

COUNT = len(MISBEHAVIOURS)


async def verdicts_after_one_call_each() -> tuple[HostileServer, dict[int, Reward]]:
    """Asks about the n-th rollout once, and the server answers with the n-th misbehaviour.

    Answers with the truth get much time, because they all end, on a busy machine perhaps late.
    """
    ending = [number for number, how in enumerate(MISBEHAVIOURS) if how.carries is Carries.TRUTH]
    others = sorted(set(range(COUNT)) - set(ending))
    async with HostileServer(seed=5, choose=lambda rollout, _call: MISBEHAVIOURS[rollout]) as server:
        verdicts = await verdicts_on(ending, server, timeout_s=60.0)
        verdicts |= await verdicts_on(others, server, timeout_s=2.0)
    return server, verdicts


async def verdicts_on(numbers: Sequence[int], server: HostileServer, *, timeout_s: float) -> dict[int, Reward]:
    async with RewardAgent(
        judge_at(server.base_url, structured="prompt"),
        max_concurrency=64,
        max_attempts=1,
        timeout_s=timeout_s,
        backoff_s=0.005,
        max_backoff_s=0.01,
        outage_share=None,
        rpm=None,
        tpm=None,
    ) as agent:
        groups = await agent.submit([rollout_of(number) for number in numbers]).all()
    return verdicts_by_number(groups, 1)[0]


def test_there_are_at_least_sixty_misbehaviours_with_names_of_their_own() -> None:
    assert len({one.name for one in MISBEHAVIOURS}) == COUNT >= 60


def test_the_judge_concludes_from_each_misbehaviour_what_an_honest_client_must() -> None:
    server, verdicts = asyncio.run(verdicts_after_one_call_each())
    wrong = {}
    for number, how in enumerate(MISBEHAVIOURS):
        value = verdicts[number].value
        truth = server.truth_of(number) / SCALE
        allowed = {Carries.TRUTH: (truth,), Carries.PERHAPS: (truth, None), Carries.NOTHING: (None,)}[how.carries]
        if value not in allowed:
            wrong[how.name] = (value, allowed)
    assert wrong == {}
    assert server.num_requests >= COUNT
    assert server.charged_usd > COUNT * 0.02  # it charges for every request that arrives
    assert server.in_flight == 0
