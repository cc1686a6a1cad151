"""`rewardflow bench judge`: measures what a call to a judge costs, and how well the agent uses a judge's limits.

The mock judge runs in another process, so that this process spends its CPU time only as the client.

Always true: a cost is given only if every call was scored; shares of a rate are the judge's counts, not the agent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module  # openai has no types here: loaded late, it is `Any`
from typing import Any

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.errors import RewardflowError
from rewardflow.mock_judge.judge_process import JudgeProcess, judge_process
from rewardflow.mock_judge.request_counts import MockJudgeStatistics
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.settings import AUTO
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.types import Rollout

logger = logging.getLogger(__name__)

IN_FLIGHT = 1024
_LATENCY = "uniform:0.2,0.8"  # long enough that all calls are in flight at the judge at the same time
_ANSWER = "She sells 16 - 3 - 4 = 9 eggs a day, and 9 * 2 = 18 dollars. " * 8

_RPM = 600
# The judge's clock runs twice as fast: 600 requests in 30 s. The agent's clock does not: it searches for a rate in
# wall-clock seconds, so a much smaller scale would measure the search and not the rate that it finds.
_SCALE = 0.5
_MINUTE_S = 60.0 * _SCALE
_REPLIES = (("fast", "constant:0.3"), ("slow", "constant:20"))


def run_judge_benchmarks(*, quick: bool = False) -> Iterator[BenchmarkRow]:
    """Yields rows as they are measured. `quick` makes a fifth of the calls, and stops before a second search."""
    yield from cost_of_a_call(count=4_000 if quick else 20_000, openai_count=1_000 if quick else 2_000)
    yield from pace_at_a_limit(duration_s=2.0 * _MINUTE_S if quick else 3.0 * _MINUTE_S)


# -- what a call costs the client ------------------------------------------------------------------------------------


def cost_of_a_call(*, count: int, openai_count: int) -> Iterator[BenchmarkRow]:
    """Measures CPU a call. The yardstick gets finished prompts and nobody parses its answers, which favours it."""
    with judge_process(latency=_LATENCY) as process:
        ours_ms = asyncio.run(_agent_cpu_ms(process.base_url, count))
        peak = process.statistics().peak_in_flight
        few_ms = asyncio.run(_agent_cpu_ms(process.base_url, openai_count))
        openai_ms = _openai_cpu_ms(process.base_url, openai_count)
    yardstick_name = "no openai client here" if openai_ms is None else f"openai client, {openai_count:,} calls"
    yield BenchmarkRow(
        name=f"{count:,} calls to a judge: client CPU a call",
        value=ours_ms,
        unit="ms",
        yardstick=openai_ms,
        yardstick_name=yardstick_name,
        bar="<= 0.5",
    )
    yield BenchmarkRow(
        name=f"{openai_count:,} calls to a judge, opening connections: client CPU a call",
        value=few_ms,
        unit="ms",
        yardstick=openai_ms,
        yardstick_name=yardstick_name,
    )
    yield BenchmarkRow(
        name="calls in flight at the judge, at most",
        value=peak,
        unit="calls",
        yardstick=IN_FLIGHT,
        yardstick_name="allowed",
    )


async def _agent_cpu_ms(base_url: str, count: int) -> float:
    """Measures from making the prompt to delivering the verdict, with the agent in between."""
    judge, rollouts = LLMJudge(model="mock-judge", base_urls=[base_url]), _rollouts(count)
    async with RewardAgent(judge, max_concurrency=IN_FLIGHT) as agent:
        gc.collect()
        began_s = time.process_time()
        groups = await agent.submit(rollouts).all()
        spent_s = time.process_time() - began_s
    failed = [reward for group in groups for reward in group.rewards if not reward.is_scored]
    if failed:
        raise RewardflowError(f"every call must be scored: {len(failed)} of {count} were not, {failed[0].error}")
    return spent_s / count * 1000.0


def _openai_cpu_ms(base_url: str, count: int) -> float | None:
    """Returns None if the client is not installed, or if it failed, which is logged as a warning."""
    if importlib.util.find_spec("openai") is None:
        return None
    try:
        return asyncio.run(_openai_calls(base_url, count))
    except Exception as error:  # another release may fail in any way, and the other benchmarks must go on
        logger.warning("the openai client failed: %s: %s", type(error).__name__, error)
        return None


async def _openai_calls(base_url: str, count: int) -> float:
    judge = LLMJudge(model="mock-judge", base_urls=[base_url])
    shape = {"name": "verdict", "strict": True, "schema": judge.rubric.schema}
    prompts = iter([judge.prompt(rollout) for rollout in _rollouts(count)])
    answers: list[str] = []

    async def work(client: Any) -> None:
        for prompt in prompts:
            answer = await client.chat.completions.create(
                model="mock-judge",
                messages=[{"role": "system", "content": judge.system_prompt}, {"role": "user", "content": prompt}],
                response_format={"type": "json_schema", "json_schema": shape},
                **judge.sampling,
            )
            answers.append(answer.choices[0].message.content)

    async with import_module("openai").AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        gc.collect()
        began_s = time.process_time()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(work(client))
        return (time.process_time() - began_s) / len(answers) * 1000.0


# -- how well a limit is used ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """One agent and its judge, with the judge's limit."""

    name: str
    judge: Mapping[str, Any]
    rpm: float | None  # None: the agent learns it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """The counts of one judge: `num_refused` of the whole run, the shares after its first minute."""

    share: float
    refused_share: float
    num_refused: int


def pace_at_a_limit(*, duration_s: float) -> Iterator[BenchmarkRow]:
    """Runs all accounts at once: they use almost no CPU, and this takes the minutes only once."""
    limits = {"rpm": _RPM, "scale": _SCALE, "says_limits": False, "says_retry_after": False}
    accounts = [
        _Account(name=f"learnt pace, {speed} replies", judge={**limits, "latency": latency}, rpm=None)
        for speed, latency in _REPLIES
    ]
    accounts += [  # an agent that keeps a rate needs a burst of one second only, for the network's jitter
        _Account(name=f"set pace, {speed} replies", judge={**limits, "latency": latency, "burst_s": 1.0}, rpm=_RPM)
        for speed, latency in _REPLIES
    ]
    for account, used in zip(accounts, asyncio.run(_drive_all(accounts, duration_s)), strict=True):
        yield BenchmarkRow(
            name=f"{account.name}: share of the rate",
            value=used.share,
            unit="",
            yardstick_name=f"of {_RPM} requests a minute",
            bar=">= 0.90",
        )
        if account.rpm is None:
            yield BenchmarkRow(
                name=f"{account.name}: answered 429",
                value=used.refused_share,
                unit="",
                yardstick_name="after the first minute",
                bar="<= 0.02",
            )
        else:
            yield BenchmarkRow(name=f"{account.name}: answered 429", value=used.num_refused, unit="calls", bar="<= 0")


async def _drive_all(accounts: Sequence[_Account], duration_s: float) -> list[_Used]:
    async with asyncio.TaskGroup() as tasks:
        driven = [tasks.create_task(_drive(account, duration_s)) for account in accounts]
    return [task.result() for task in driven]


async def _drive(account: _Account, duration_s: float) -> _Used:
    loop = asyncio.get_running_loop()
    rpm = AUTO if account.rpm is None else account.rpm / _SCALE
    async with _judge_process(account.judge) as process:
        judge = LLMJudge(model="mock-judge", base_urls=[process.base_url])
        async with RewardAgent(judge, max_concurrency=IN_FLIGHT, rpm=rpm) as agent:
            # More than the judge can accept, with a minute's worth of burst and a retry of each refused call.
            ticket = agent.submit(_rollouts(int((duration_s + 2.0 * _MINUTE_S) * _RPM / _MINUTE_S)))
            await asyncio.sleep(_MINUTE_S)
            before, before_s = process.statistics(), loop.time()
            await asyncio.sleep(duration_s - _MINUTE_S)
            after, after_s = process.statistics(), loop.time()
            ticket.cancel()
    accepted, refused = _accepted(after) - _accepted(before), _refused(after) - _refused(before)
    return _Used(
        share=accepted / ((after_s - before_s) * _RPM / _MINUTE_S),
        refused_share=refused / (accepted + refused),
        num_refused=_refused(after),
    )


def _accepted(statistics: MockJudgeStatistics) -> int:
    """Counts calls when they are admitted, not when they are answered, as the limit does."""
    return sum(statistics.admitted_again.values())


def _refused(statistics: MockJudgeStatistics) -> int:
    return statistics.outcomes.get("limited_requests", 0)


# -- the judge -------------------------------------------------------------------------------------------------------


def _rollouts(count: int) -> list[Rollout]:
    question = (
        "Janet's ducks lay 16 eggs a day. She eats three, bakes with four and sells the rest at $2 each. How much?"
    )
    return [
        Rollout(group_id=str(i), prompt=question, response=f"{_ANSWER}Answer {i}: 18", ground_truth="18")
        for i in range(count)
    ]


@contextlib.asynccontextmanager
async def _judge_process(settings: Mapping[str, Any]) -> AsyncIterator[JudgeProcess]:
    """Starts and ends a judge process without blocking the loop."""
    manager = judge_process(**settings)
    process = await asyncio.to_thread(manager.__enter__)
    try:
        yield process
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
