"""A reward that raises what ends programs, stops the loop or cancels all tasks fails alone, or ends the agent clearly.

Each case runs in a thread that the test waits for with a limit, because the failure to guard against is a hang.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
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


async def in_a_task(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.create_task(work)


async def gathered(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(asyncio.sleep(0.0), work)


async def with_a_limit(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait_for(work, 10.0)


async def in_a_group(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work)


@pytest.mark.parametrize("run", [by_score, by_agent])
@pytest.mark.parametrize("start", [in_a_task, gathered, with_a_limit, in_a_group])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (SystemExit(3), "raised SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
    ],
)
def test_a_task_of_the_reward_that_raises_what_ends_programs_fails_its_verdict_alone(
    run: Any, start: Any, error: BaseException, message: str
) -> None:
    async def raise_it() -> None:
        await asyncio.sleep(0.001)
        raise error

    async def reward(response: str) -> float:
        if response == "bad":
            await start(raise_it())
        return 1.0

    check_only_bad_failed(within_limit(lambda: run(reward)), message)


def test_tasks_of_others_and_their_factory_are_left_alone() -> None:
    made: list[str] = []

    async def raise_in_task() -> None:
        raise SystemExit(3)

    def factory(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coroutine.__name__)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def reward(response: str) -> float:
        await asyncio.create_task(asyncio.sleep(0.0))
        return 1.0

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        async with rf.RewardAgent(reward) as one, rf.RewardAgent(reward) as other:
            await asyncio.gather(one.submit(ROLLOUTS).all(), other.submit(ROLLOUTS).all())
        assert loop.get_task_factory() is factory
        assert "sleep" in made
        async with rf.RewardAgent(reward):
            await asyncio.create_task(raise_in_task())

    with pytest.raises(SystemExit):
        within_limit(lambda: asyncio.run(main()))  # type: ignore[arg-type, func-returns-value]


@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("waits_first", [False, True])
def test_a_reward_that_cancels_its_own_task_fails_alone(num_slots: int, waits_first: bool) -> None:
    def cancel_own_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def main() -> list[rf.Reward]:
        reward = misbehaving(cancel_own_task, waits_first=waits_first)
        rollouts = [rollout for number in range(10) for rollout in group(str(number), "bad" if number == 4 else "good")]
        async with rf.RewardAgent(reward, max_concurrency=num_slots, max_attempts=1) as agent:
            return [one.rewards[0] for one in await agent.submit(rollouts).all()]

    rewards = within_limit(lambda: asyncio.run(main()))
    assert [one.value for one in rewards] == [None if number == 4 else 1.0 for number in range(10)]
    assert "cancelled the task that runs it" in (rewards[4].error or "")


def raiser(error: BaseException) -> Any:
    def method(self: object, *arguments: object) -> Any:
        raise error

    return method


@pytest.mark.parametrize("run", [by_score, by_agent])
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), KeyboardInterrupt(), ValueError("odd")])
def test_an_exception_that_cannot_be_shown_fails_alone(run: Any, error: BaseException) -> None:
    odd = type("Odd", (Exception,), {"__str__": raiser(error)})

    def reward(response: str) -> float:
        if response == "bad":
            raise odd
        return 1.0

    check_only_bad_failed(within_limit(lambda: run(reward)), "its text cannot be made")


@pytest.mark.parametrize("run", [by_score, by_agent])
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), KeyboardInterrupt(), ValueError("odd")])
def test_an_answer_whose_methods_raise_fails_alone(run: Any, error: BaseException) -> None:
    names = (
        "__getitem__",
        "__iter__",
        "__len__",
        "__contains__",
        "get",
        "keys",
        "items",
        "values",
        "copy",
        "__float__",
    )
    odd = type("Odd", (dict,), {name: raiser(error) for name in names})

    def reward(response: str) -> Any:
        return odd() if response == "bad" else 1.0

    rewards = within_limit(lambda: run(reward))
    assert [one.value for one in rewards] == [1.0, None, 1.0]


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
