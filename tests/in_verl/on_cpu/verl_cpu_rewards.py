"""Rewards for verl runs in tests: delays that are a function of the sample, and calls that go wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
from collections import Counter
from typing import Any

_ASKED: Counter[int] = Counter()  # how often each prompt's responses were judged in this process


def digits(text: str) -> float:
    return sum(character.isdigit() for character in text) / 16


def delay_s(index: int, sample: int, *, median_s: float, sigma: float, cap_s: float) -> float:
    """Returns a lognormal delay, the same for a prompt's sample in every run and mode."""
    seed = hashlib.sha256(f"{index}/{sample}".encode()).digest()
    return min(cap_s, median_s * math.exp(random.Random(seed).gauss(0.0, sigma)))


async def delayed(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,
    median_s: float = 0.0,
    sigma: float = 1.0,
    cap_s: float = 60.0,
) -> float:
    """Judges a prompt's k-th response after the k-th delay of that prompt; both in the order of asking.

    Different texts have different scores, so that even a batch of four responses has something to learn from.
    """
    index = extra_info["index"]
    place = _ASKED[index]
    _ASKED[index] += 1
    if median_s:
        await asyncio.sleep(delay_s(index, place, median_s=median_s, sigma=sigma, cap_s=cap_s))
    return digits(solution_str) + hashlib.sha256(solution_str.encode()).digest()[0] / 256 / 16


class TroubledJudge:
    """One prompt's call raises, another's hangs, another's answer is of another type; extra keys differ."""

    async def compute_score(
        self, data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
    ) -> Any:
        index = extra_info["index"]
        if index == 0:
            raise RuntimeError("the judge broke")
        if index == 1:
            await asyncio.sleep(3600)
        if index == 2:
            return ["no number"]
        return {"score": 0.5 + digits(solution_str), f"note_{index % 3}": index}


class TroubledSamples:
    """One sample's call raises, one hangs, one is answered with another type; three of a prompt's four raise."""

    async def compute_score(
        self, data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
    ) -> Any:
        index = extra_info["index"]
        place = _ASKED[index]
        _ASKED[index] += 1
        match index, place:
            case (0, 0) | (3, 0 | 1 | 2):
                raise RuntimeError("the judge broke")
            case 1, 0:
                await asyncio.sleep(3600)
            case 2, 0:
                return ["no number"]
        return {"score": 0.5 + digits(solution_str), f"note_{place}": index}


def paid(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, float]:
    return {"score": digits(solution_str), "cost_usd": 1.0}


async def length_of_response(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **settings: float
) -> float:
    """1 and the number of bytes, after a delay: groups finish in any order, and each score tells whose it is."""
    await delayed(data_source, solution_str, ground_truth, extra_info, **settings)
    return 1.0 + len(solution_str)


class Ranking:
    """Judges a group when all of it is there."""

    async def score_group(self, rollouts: Any) -> list[float]:
        lengths = sorted(len(rollout.response) for rollout in rollouts)
        return [float(lengths.index(len(rollout.response))) for rollout in rollouts]


class Gsm8kAgent:
    """A reward as users of the recipe wrote it: tuples, whole groups afterwards, and a log of every batch."""

    def compute_score(
        self, data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
    ) -> tuple[float, str, str]:
        score = digits(solution_str)
        return score, solution_str, f"score: {score}"

    def post_process_scores(self, scores: list[float]) -> list[float]:
        mean = sum(scores) / len(scores)
        return [score - mean for score in scores]

    def log(
        self,
        timestamps: list[str],
        queries: list[str],
        results: list[str],
        latencies: list[float],
        group_uids: list[str],
    ) -> None:
        with open(os.environ["RECIPE_LOG"], "a") as file:
            file.write(json.dumps([timestamps, results, group_uids]) + "\n")


def compute_score_per_sample(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> tuple[float, str, str]:
    return Gsm8kAgent().compute_score(data_source, solution_str, ground_truth, extra_info)


def rounded(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    """0 or 1, so that about half of all groups agree, with a number and a text beside it."""
    return {"score": float(digits(solution_str[:4]) > 0), "num_letters": len(solution_str), "note": "looked for digits"}
