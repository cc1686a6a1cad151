"""An agent is used from its own process and left on its own event loop."""

from __future__ import annotations

import asyncio
import os

import pytest
from rollouts import group

import rewardflow as rf


def test_an_agent_is_left_on_the_loop_it_was_entered_on_and_can_be_after_a_mistake() -> None:
    agent = rf.RewardAgent(lambda solution_str: 1.0)

    async def leave() -> None:
        await agent.__aexit__(None, None, None)

    with asyncio.Runner() as home:
        home.run(agent.__aenter__())
        with asyncio.Runner() as elsewhere, pytest.raises(rf.InvalidInput, match="entered on"):
            elsewhere.run(leave())
        assert agent.is_open
        home.run(leave())
    assert not agent.is_open


def test_a_fork_of_the_agents_process_is_told_to_open_its_own() -> None:
    async def judge(solution_str: str) -> float:
        return 1.0

    async def main() -> int:
        async with rf.RewardAgent(judge) as agent:  # without threads, which Python warns of when it forks
            child = os.fork()
            if child == 0:
                try:
                    agent.submit(group("g", "a"))
                except rf.AgentClosed as error:
                    os._exit(7 if "forked" in str(error) else 8)
                finally:
                    os._exit(9)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            return os.waitstatus_to_exitcode(status)

    assert asyncio.run(main()) == 7
