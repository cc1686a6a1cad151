"""The agent for code that is not async: `rf.score`, and the plain function over lists that trainers call."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_at_work import left_over
from rollouts import group

import rewardflow as rf


def number(solution_str: str) -> float:
    return float(solution_str)


async def async_number(solution_str: str) -> float:
    await asyncio.sleep(0)
    return float(solution_str)


@contextlib.contextmanager
def running_script(text: str) -> Iterator[subprocess.Popen[str]]:
    """A script of the user's, in a Python of its own; killed if the test ends before it."""
    command = [sys.executable, "-X", "faulthandler", "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run_script(text: str) -> tuple[int, str, str]:
    with running_script(text) as process:
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Sends Ctrl-C a little after the start: Python can miss a signal that comes as its main thread begins to wait.

    Real time, because nothing outside the process tells when its main thread waits.
    """
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=30)


FULL_DISK = """
import asyncio, resource, signal, sys
import rewardflow as rf
from rewardflow.errors import JournalWriteFailed

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
calls = []

async def reward(solution_str):
    calls.append(solution_str)
    await asyncio.sleep(0.001)
    if len(calls) >= int(sys.argv[1]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return {"score": 0.5, "explanation": "x" * 30_000}

rollouts = [rf.Rollout(group_id=str(i), response=str(i)) for i in range(200)]
try:
    rf.score(rollouts, reward, journal=sys.argv[2], max_concurrency=8)
except JournalWriteFailed as error:
    verdicts = {rollout.response: reward for group in error.groups for rollout, reward
                in zip(group.rollouts, group.rewards)}
    assert len(verdicts) == 200
    assert {text for text, reward in verdicts.items() if reward.value == 0.5} == set(calls)
    print(len(calls))
"""


@pytest.mark.parametrize("full_from_call", [10, 200])
def test_on_a_full_disk_every_verdict_that_was_paid_travels_on_the_exception(
    tmp_path: Path, full_from_call: int
) -> None:
    """A limit on file size stands in for the full disk: both make the write fail."""
    command = [sys.executable, "-c", FULL_DISK, str(full_from_call), str(tmp_path / "j.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= full_from_call + 32


# -- rf.score ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [number, async_number])
def test_score_gives_one_reward_for_each_rollout_in_their_order(reward: Any) -> None:
    a, b = group("a", "1", "2", "3"), group("b", "4", "5")
    shuffled = [b[1], a[2], a[0], b[0], a[1]]
    rewards = rf.score(shuffled, reward, max_concurrency=2)
    assert [one.value for one in rewards] == [5.0, 3.0, 1.0, 4.0, 2.0]


def test_score_takes_any_iterable_and_an_empty_one_gives_nothing() -> None:
    assert [one.value for one in rf.score(iter(group("a", "1")), number, max_concurrency=1)] == [1.0]
    assert rf.score([], number, max_concurrency=1) == []


def test_score_of_the_same_group_in_two_steps_keeps_them_apart() -> None:
    rollouts = [*group("g", "1", step=0), *group("g", "2", step=1)]
    assert [one.value for one in rf.score(rollouts, number, max_concurrency=2)] == [1.0, 2.0]


def test_a_failed_call_of_score_is_a_failed_reward_in_its_place() -> None:
    rewards = rf.score(group("g", "1", "oops", "3"), number, max_concurrency=2)
    assert [one.value for one in rewards] == [1.0, None, 3.0]
    assert rewards[1].kind == "user_error"


def test_score_works_under_a_running_event_loop_as_in_a_notebook() -> None:
    async def cell() -> list[rf.Reward]:
        return rf.score(group("g", "1", "2"), async_number)

    assert [one.value for one in asyncio.run(cell())] == [1.0, 2.0]


def test_score_works_in_a_thread_and_in_several_at_once() -> None:
    results: dict[int, list[float | None]] = {}

    def work(i: int) -> None:
        results[i] = [one.value for one in rf.score(group("g", str(i), str(i + 1)), async_number)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {i: [float(i), float(i + 1)] for i in range(4)}


def test_score_passes_settings_reward_kwargs_and_weights_on() -> None:
    def scaled(solution_str: str, factor: float) -> float:
        return factor * float(solution_str)

    assert rf.score(group("g", "2"), scaled, reward_kwargs={"factor": 5}, max_concurrency=1)[0].value == 10.0
    parts = [rf.Weighted(number, 2.0, name="a"), rf.Weighted(async_number, 3.0, name="b")]
    assert rf.score(group("g", "2"), parts, max_concurrency=1)[0].value == 10.0
    with pytest.raises(rf.InvalidInput, match="max_concurrency"):
        rf.score(group("g", "2"), number, max_concurrency=-1)


def test_score_closes_the_reward_and_leaves_no_thread_of_its_own_behind() -> None:
    closed = threading.Event()

    class Judge:
        def compute_score(self, solution_str: str) -> float:
            return float(solution_str)

        async def aclose(self) -> None:
            closed.set()

    before = set(threading.enumerate())
    rf.score(group("g", "1"), Judge, max_concurrency=4)
    assert closed.is_set()
    assert left_over(before) == []


def test_score_refuses_a_group_that_can_never_be_complete_before_anything_is_sent() -> None:
    calls: list[str] = []

    def reward(solution_str: str) -> float:
        calls.append(solution_str)
        return 1.0

    with pytest.raises(rf.IncompleteGroup, match=r"'g'.*index 1"):
        rf.score([group("g", "1", "2", "3")[0], group("g", "1", "2", "3")[2]], reward)
    with pytest.raises(rf.InvalidInput, match="index=0"):
        rf.score([*group("g", "1", "2"), *group("g", "3", "4")[:1]], reward, max_concurrency=1)
    with pytest.raises(rf.InvalidInput, match="dict"):
        rf.score([{"response": "x"}], reward)  # type: ignore[list-item]
    assert calls == []


def test_score_refuses_a_group_of_an_absurd_size_without_counting_to_it() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(rf.IncompleteGroup, match=r"lacks index 1, 2, 3, 4, 5, 6, 7, 8, 9, 10$"):
            rf.score(rf.Rollout(group_id="g", group_size=1_000_000, response="x"), number)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_an_error_while_opening_reaches_the_caller_of_score_as_it_is() -> None:
    with pytest.raises(rf.RewardLoadError, match=r"/no/such\.py"):
        rf.score(group("g", "1"), "/no/such.py:judge")


def test_a_spent_budget_reaches_the_caller_of_score_with_every_verdict_that_was_reached() -> None:
    async def reward(solution_str: str) -> float:
        rf.report_usage(cost_usd=1.0)
        return 1.0

    rollouts = [rollout for i in range(5) for rollout in group(str(i), "x")]
    with pytest.raises(rf.BudgetExhausted) as caught:
        rf.score(rollouts, reward, max_cost_usd=2.0, call_cost_usd=1.0)
    verdicts = {one.group_id: one.rewards[0] for one in caught.value.groups}
    assert len(verdicts) == 5
    assert sum(verdict.is_scored for verdict in verdicts.values()) == 2
    assert {verdict.kind for verdict in verdicts.values()} == {None, "budget"}


# The judges of these scripts hang for real: the tests are about a process that is interrupted in a call.
SLOW_SCRIPT = """
import rewardflow as rf

class Judge:
    {definition}

    def close(self):
        print("closed", flush=True)

rollouts = [rf.Rollout(group_id=str(i), response="x") for i in range(8)]
try:
    rf.score(rollouts, Judge, max_concurrency=4, timeout_s=None, close_timeout_s=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(7)
"""
ASYNC_JUDGE = """
    async def compute_score(self, solution_str):
        import asyncio
        print("started", flush=True)
        await asyncio.sleep(600)
"""
PLAIN_JUDGE = """
    def compute_score(self, solution_str):
        import os, time
        os.write(1, b"started\\n")  # print would mix the lines of several threads
        time.sleep(600)
"""


@pytest.mark.parametrize("definition", [ASYNC_JUDGE, PLAIN_JUDGE], ids=["async", "plain"])
def test_ctrl_c_during_score_closes_the_agent_in_order_and_goes_on(definition: str) -> None:
    with running_script(SLOW_SCRIPT.format(definition=definition)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        out, err = interrupt(process)
    assert process.returncode == 7, err
    assert out.splitlines()[-2:] == ["closed", "interrupted"]
    assert "Traceback" not in err


def test_ctrl_c_during_an_agents_block_ends_the_script() -> None:
    script = """
import asyncio
import rewardflow as rf

async def reward(solution_str):
    print("started", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("ended", flush=True)

async def main():
    async with rf.RewardAgent(reward) as agent:
        await agent.submit(rf.Rollout(group_id="g", response="x")).all()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    raise SystemExit(7)
"""
    with running_script(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        out, err = interrupt(process)
    assert process.returncode == 7, err
    assert out == "ended\n"


# -- as_batch_function -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def batch_function(reward: Any, *, group_size: int = 1, failed: float | None = None, **options: Any) -> Iterator[Any]:
    function = rf.RewardAgent(reward, **options).as_batch_function(group_size=group_size, failed=failed)
    try:
        yield function
    finally:
        function.close()


def test_trl_calls_it_with_keyword_lists_and_gets_one_number_for_each_completion_in_order() -> None:
    seen: list[tuple[Any, ...]] = []
    all_started = asyncio.Event()

    async def reward(prompt: str, solution_str: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
        seen.append((prompt, solution_str, ground_truth, data_source, extra_info["difficulty"]))
        if len(seen) == 3:
            all_started.set()
        if solution_str == "4":  # the first to start is the last to end
            await all_started.wait()
        return float(solution_str == ground_truth)

    with batch_function(reward) as function:
        rewards = function(
            prompts=["2+2", "1+1", "3+3"],
            completions=["4", "3", "6"],
            completion_ids=[[1], [2], [3]],
            ground_truth=["4", "2", "6"],
            data_source=["sums", "sums", "sums"],
            difficulty=[1, 2, 3],
            trainer_state=object(),
        )
    assert rewards == [1.0, 0.0, 1.0]
    assert all(type(one) is float for one in rewards)
    assert sorted(seen) == [
        ("1+1", "3", "2", "sums", 2),
        ("2+2", "4", "4", "sums", 1),
        ("3+3", "6", "6", "sums", 3),
    ]


def test_chat_messages_reach_the_reward_as_messages_and_the_completions_text() -> None:
    seen: list[tuple[Any, ...]] = []

    async def reward(messages: Any, solution_str: str) -> float:
        seen.append((list(messages), solution_str))
        return 1.0

    prompt = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}]
    with batch_function(reward) as function:
        assert function(prompts=[prompt], completions=[[{"role": "assistant", "content": "4"}]]) == [1.0]
    assert seen == [(prompt, "4")]


def test_a_failed_verdict_is_none_which_trl_leaves_out_and_never_a_zero() -> None:
    with batch_function(number, max_concurrency=2) as function:
        assert function(prompts=["p"] * 3, completions=["1", "oops", "3"]) == [1.0, None, 3.0]


def test_a_failed_verdict_is_the_callers_number_if_the_caller_asks_for_one() -> None:
    with batch_function(number, failed=-1.0, max_concurrency=2) as function:
        assert function(prompts=["p"] * 2, completions=["oops", "3"]) == [-1.0, 3.0]


def test_neighbours_form_groups_of_the_given_size() -> None:
    class Judge:
        async def score_group(self, rollouts: Any) -> list[float]:
            best = max(rollouts, key=lambda rollout: int(rollout.response))
            return [float(rollout is best) for rollout in rollouts]

    with batch_function(Judge, group_size=3) as function:
        assert function(prompts=["p"] * 6, completions=["1", "9", "5", "7", "2", "3"]) == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_repeated_calls_with_equal_prompts_and_completions_stay_apart() -> None:
    calls: list[str] = []

    async def reward(solution_str: str, extra_info: Any) -> float:
        calls.append(extra_info["group_uid"])
        return float(solution_str)

    with batch_function(reward) as function:
        for _ in range(3):
            assert function(prompts=["p", "p"], completions=["1", "1"]) == [1.0, 1.0]
    assert len(set(calls)) == 6


def test_it_may_be_called_from_several_threads_at_once() -> None:
    results: dict[int, Any] = {}
    with batch_function(async_number) as function:

        def work(i: int) -> None:
            results[i] = function(prompts=["p"] * 20, completions=[str(i)] * 20)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert results == {i: [float(i)] * 20 for i in range(6)}


def test_it_works_under_a_running_loop() -> None:
    async def cell() -> Any:
        with batch_function(async_number) as function:
            return function(prompts=["p"], completions=["1"])

    assert asyncio.run(cell()) == [1.0]


def test_it_uses_an_agent_that_is_already_open_in_another_thread_and_leaves_it_open() -> None:
    async def main() -> None:
        async with rf.RewardAgent(async_number) as agent:
            function = agent.as_batch_function()
            assert await asyncio.to_thread(function, prompts=["p"], completions=["1"]) == [1.0]
            await asyncio.to_thread(function.close)
            assert len(await agent.submit(group("g", "2")).all()) == 1

    asyncio.run(main())


def test_called_on_the_agents_own_loop_it_refuses_instead_of_hanging() -> None:
    async def main() -> None:
        async with rf.RewardAgent(async_number) as agent:
            with pytest.raises(rf.RewardflowError):
                agent.as_batch_function()(prompts=["p"], completions=["1"])

    asyncio.run(main())


def test_no_completions_give_no_rewards() -> None:
    with batch_function(async_number) as function:
        assert function(prompts=[], completions=[]) == []


def test_it_has_a_name_as_trl_needs_for_its_metrics() -> None:
    with batch_function(number) as function:
        assert "number" in function.__name__


def test_lists_that_do_not_fit_are_refused_with_their_lengths() -> None:
    with batch_function(async_number, group_size=2) as function:
        with pytest.raises(rf.InvalidInput, match=r"3.*2"):
            function(prompts=["p"] * 3, completions=["1"] * 2)
        with pytest.raises(rf.InvalidInput, match=r"3.*2"):
            function(prompts=["p"] * 3, completions=["1"] * 3)
        with pytest.raises(rf.InvalidInput, match="int"):
            function(prompts=["p"] * 2, completions=[1, 2])
    with pytest.raises(rf.InvalidInput, match="group_size"):
        rf.RewardAgent(async_number).as_batch_function(group_size=0)


def test_a_column_that_is_shorter_than_the_completions_is_not_silently_lost() -> None:
    """A reward that asks for `ground_truth` must not be given None because the caller's list has the wrong length."""

    async def reward(solution_str: str, ground_truth: Any) -> float:
        return float(solution_str == ground_truth)

    with batch_function(reward) as function, pytest.raises(rf.InvalidInput, match="ground_truth"):
        function(prompts=["p"] * 3, completions=["1", "2", "3"], ground_truth=["1", "2"])


def test_an_error_while_opening_reaches_the_caller_every_time() -> None:
    function = rf.RewardAgent("/no/such.py:judge").as_batch_function()
    for _ in range(2):
        with pytest.raises(rf.RewardflowError):
            function(prompts=["p"], completions=["1"])
    function.close()


def test_after_close_it_says_that_it_is_closed_and_closing_twice_is_fine() -> None:
    function = rf.RewardAgent(async_number).as_batch_function()
    assert function(prompts=["p"], completions=["1"]) == [1.0]
    function.close()
    function.close()
    with pytest.raises(rf.AgentClosed):
        function(prompts=["p"], completions=["1"])


def test_close_closes_the_reward() -> None:
    closed = threading.Event()

    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return 1.0

        def close(self) -> None:
            closed.set()

    with batch_function(Judge) as function:
        function(prompts=["p"], completions=["1"])
        assert not closed.is_set()
    assert closed.is_set()


def test_a_script_that_never_closes_it_still_ends_and_closes_the_reward() -> None:
    code, out, err = run_script(
        """
import rewardflow as rf

class Judge:
    def compute_score(self, solution_str):
        return float(solution_str)

    def close(self):
        print("closed", flush=True)

function = rf.RewardAgent(Judge, max_concurrency=4).as_batch_function()
print(function(prompts=["p", "p"], completions=["1", "oops"]), flush=True)
"""
    )
    assert (code, out.splitlines()) == (0, ["[1.0, None]", "closed"]), err


def test_ctrl_c_during_a_call_of_it_ends_the_script_and_closes_the_reward() -> None:
    script = """
import asyncio
import rewardflow as rf

class Judge:
    async def compute_score(self, solution_str):
        print("started", flush=True)
        await asyncio.sleep(600)

    def close(self):
        print("closed", flush=True)

function = rf.RewardAgent(Judge, timeout_s=None, close_timeout_s=2).as_batch_function()
try:
    function(prompts=["p"], completions=["1"])
except KeyboardInterrupt:
    raise SystemExit(7)
"""
    with running_script(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        out, err = interrupt(process)
    assert (process.returncode, out) == (7, "closed\n"), err


def test_a_spent_budget_reaches_the_trainer_as_an_exception_and_not_as_numbers() -> None:
    async def reward(solution_str: str) -> float:
        rf.report_usage(cost_usd=1.0)
        return 1.0

    with (
        batch_function(reward, max_cost_usd=2.0, call_cost_usd=1.0) as function,
        pytest.raises(rf.BudgetExhausted),
    ):
        function(prompts=["p"] * 5, completions=["x"] * 5)
