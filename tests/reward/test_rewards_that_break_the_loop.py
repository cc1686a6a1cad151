"""A reward that raises what ends programs, stops the loop or cancels all tasks fails alone, or ends the agent clearly.

Each case runs in a thread that the test waits for with a limit, because the failure to guard against is a hang.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rollouts import group

import rewardflow as rf

ROLLOUTS = [rollout for name in ("good", "bad", "fine") for rollout in group(name, name)]
LIMIT_S = 30.0


def by_score(reward: Any) -> list[rf.Reward]:
    return rf.score(ROLLOUTS, reward, max_concurrency=1, close_timeout_s=2)


def by_agent(reward: Any) -> list[rf.Reward]:
    async def main() -> list[rf.Reward]:
        async with rf.RewardAgent(reward, max_concurrency=1, close_timeout_s=2) as agent:
            return [one.rewards[0] for one in await agent.submit(ROLLOUTS).all()]

    return asyncio.run(main())


def within_limit(action: Callable[[], list[rf.Reward]]) -> list[rf.Reward]:
    """Runs the action in a thread; returns its result, or raises its exception, or fails if it hangs."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    if not results:
        pytest.fail(f"it was not over after {LIMIT_S:g} s")
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def misbehaving(action: Callable[[], object], *, waits_first: bool) -> Any:
    async def reward(response: str) -> float:
        if waits_first:
            await asyncio.sleep(0.001)
        if response == "bad":
            action()
        return 1.0

    return reward


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def raise_generator_exit() -> None:
    raise GeneratorExit


def stop_loop() -> None:
    asyncio.get_running_loop().stop()


def cancel_all_tasks() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def check_only_bad_failed(rewards: list[rf.Reward], message: str) -> None:
    assert [one.value for one in rewards] == [1.0, None, 1.0]
    assert rewards[1].kind == "user_error"
    assert message in (rewards[1].error or "")


@pytest.mark.parametrize("run", [by_score, by_agent])
@pytest.mark.parametrize("waits_first", [False, True])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (raise_interrupt, "reward code raised KeyboardInterrupt"),
        (raise_generator_exit, "reward code raised GeneratorExit"),
        (stop_loop, "reward code stopped the event loop"),
    ],
)
def test_a_reward_that_would_end_the_loop_fails_alone(run: Any, waits_first: bool, action: Any, message: str) -> None:
    check_only_bad_failed(within_limit(lambda: run(misbehaving(action, waits_first=waits_first))), message)


@pytest.mark.parametrize("run", [by_score, by_agent])
@pytest.mark.parametrize("waits_first", [False, True])
def test_a_reward_that_cancels_all_tasks_closes_the_agent_with_its_name(run: Any, waits_first: bool) -> None:
    reward = misbehaving(cancel_all_tasks, waits_first=waits_first)
    with pytest.raises(rf.AgentClosed, match=r"reward .*reward cancelled tasks that it did not start"):
        within_limit(lambda: run(reward))


def test_a_task_of_the_reward_that_raises_what_ends_programs_does_not_end_the_loop_of_score() -> None:
    async def raise_in_task(error: BaseException) -> None:
        raise error

    for error, message in (
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "raised GeneratorExit"),
    ):

        async def reward(response: str, error: BaseException = error) -> float:
            if response == "bad":
                await asyncio.create_task(raise_in_task(error))
            return 1.0

        check_only_bad_failed(within_limit(lambda reward=reward: by_score(reward)), message)  # type: ignore[misc]


@pytest.mark.parametrize("action", [raise_interrupt, raise_generator_exit])
def test_a_quick_local_decision_that_raises_what_ends_programs_fails_alone(action: Any) -> None:
    class Judge:
        decides_quickly = True

        def decide_locally(self, rollout: rf.Rollout) -> None:
            if rollout.response == "bad":
                action()

        async def compute_score(self, response: str) -> float:
            return 1.0

    check_only_bad_failed(within_limit(lambda: by_score(Judge)), "decide_locally failed")


def test_a_batch_function_goes_on_after_a_reward_stopped_the_loop() -> None:
    agent = rf.RewardAgent(misbehaving(stop_loop, waits_first=False), max_concurrency=1, close_timeout_s=2)
    function = agent.as_batch_function()

    def run() -> Any:
        scores = [function(prompts=["p"] * 2, completions=["bad", "good"]) for _ in range(2)]
        function.close()
        return scores

    assert within_limit(run) == [[None, 1.0]] * 2
