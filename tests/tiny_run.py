"""Runs of the tiny policy that take a second, and rewards for them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from rewardflow.flow.schedule import Schedule
from rewardflow.reward.agent import RewardAgent
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    DataSettings,
    GenerationSettings,
    RunSettings,
    TrainerSettings,
)

REWARDS = '''
import asyncio
import pathlib

import rewardflow as rf

CALLS = pathlib.Path(__file__).with_name("calls.txt")


async def judge(response, ground_truth, extra_info):
    """Scores as many kinds of answers differently, costs a cent, and writes down what it was asked."""
    with CALLS.open("a") as file:
        file.write(f"{extra_info['group_uid']} {response}\\n")
    await asyncio.sleep(0.005)
    rf.report_usage(cost_usd=0.01, tokens=7)
    return (1.0 if response == ground_truth else 0.0) - 0.1 * len(response) - 0.01 * sum(map(ord, response))


async def slow(response):
    await asyncio.sleep(40)
    return 1.0


async def silent(response):
    return 1.0


async def broken(response):
    return response["no such key"]


async def refusing(response):
    raise rf.ServiceError("the service answered 401: no such key", status=401, retryable=False)


async def unclear(response):
    return "a poem"


async def refusing_later(response, extra_info):
    """Well when it is asked about a sample, and never again."""
    if not extra_info["group_uid"].startswith("sample"):
        raise rf.ServiceError("gone", retryable=False)
    return 1.0


class Free:
    """Knows that its calls cost nothing."""

    def price_problem(self):
        return None

    async def compute_score(self, response):
        return 1.0


class Paid(Free):
    async def compute_score(self, response):
        raise rf.ServiceError("the service answered 401: no such key", status=401, retryable=False)


class Hanging:
    endpoints = ("http://127.0.0.1:9",)

    async def compute_score(self, response):
        await asyncio.sleep(3600)


class Ranking:
    async def score_group(self, rollouts):
        rf.report_usage(cost_usd=0.04)
        return [float(rollout.index) for rollout in rollouts]


class Cascade:
    decides_quickly = True

    def decide_locally(self, rollout):
        return 1.0 if rollout.response == rollout.ground_truth else None

    async def compute_score(self, response):
        raise rf.ServiceError("nobody at home")
'''


def settings_in(folder: Path, reward: str = "judge", **fields: Any) -> RunSettings:
    """Three steps with a reward of the file above, written into the folder."""
    (folder / "rewards.py").write_text(REWARDS, "utf-8")
    defaults: dict[str, Any] = {
        "reward": f"{folder / 'rewards.py'}:{reward}",
        "data": DataSettings(task="copy_digits"),
        "schedule": Schedule(groups_per_step=4, mini_batches=2, stream="mini_batch", max_staleness=1),
        "steps": 3,
        "generation": GenerationSettings(group_size=4, max_prompt_tokens=8, max_response_tokens=5),
        "algorithm": AlgorithmSettings(),
        "trainer": TrainerSettings(lr=1e-3, threads=1),
    }
    return RunSettings(**{**defaults, **fields})


RUN_FILE = """
reward: rewards.py:judge
data: {task: copy_digits}
steps: 3
run_dir: run
schedule: {groups_per_step: 4, mini_batches: 2, stream: mini_batch, max_staleness: 1}
generation: {group_size: 4, max_prompt_tokens: 8, max_response_tokens: 5}
trainer: {lr: 1e-3, threads: 1}
"""


def write_run_file(folder: Path) -> None:
    (folder / "rewards.py").write_text(REWARDS, "utf-8")
    (folder / "run.yaml").write_text(RUN_FILE, "utf-8")


def calls_in(folder: Path) -> list[str]:
    """The groups that were asked about, one for each call."""
    file = folder / "calls.txt"
    return [line.rpartition(" ")[0] for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def erratic_agent(delay_seed: int) -> RewardAgent:
    """Takes as long as the seed says; its scores, and which of them fail, depend on what is scored alone."""
    delays = random.Random(delay_seed)

    async def compute_score(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        await asyncio.sleep(delays.uniform(0, 0.03))
        chance = random.Random(f"{extra_info['group_uid']} {solution_str} {ground_truth}")
        if chance.random() < 0.15:
            raise ValueError("no verdict")
        return chance.random()

    return RewardAgent(compute_score, max_concurrency=64, max_attempts=1)
