"""What the demo scores, and the slow, faulty, paid judge that it scores with. Everything is made up on this machine.

Always true: the true score of every answer is known beforehand, and the judge never sees it; a call's luck depends on
the seed, the answer and the attempt, so that a seed gives the same faults whatever the timing. Only the rate limit and
the outage depend on it, as they would in life.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import rewardflow as rf
from rewardflow.reward.simulated_service import SimulatedService

STEPS = 6
MEDIAN_LATENCY_S = 0.20
LATENCY_SPREAD = 0.6
TIMEOUT_S = 1.5
OUTAGE_S = 2.0
REFUSAL_S = 0.03
RETRY_AFTER_S = 0.25
RETRY_AFTER_SHARE = 0.12

CALLS_PER_S = 250.0
ANNOUNCED_PER_S = 275.0  # as services do: what the headers promise is more than what one gets
BURST = 10

Fate = Literal["answers", "hangs", "resets", "babbles", "refuses"]
# Of every call; of every answer, however often it is tried.
PER_CALL: tuple[tuple[Fate, float], ...] = (("hangs", 0.01), ("resets", 0.03), ("babbles", 0.008))
PER_ANSWER: tuple[tuple[Fate, float], ...] = (("refuses", 0.002), ("hangs", 0.001))
BABBLE: tuple[Any, ...] = ("I would give it a solid eight.", None, math.nan, {"verdict": "good"}, [])


# ---- the answers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A rollout and its true score; None where no score can be given."""

    rollout: rf.Rollout
    truth: float | None


def make_answers(count: int, seed: int) -> list[Answer]:
    """Right and wrong answers to arithmetic problems, in groups of four or five, over several steps."""
    rng = random.Random(f"answers {seed}")
    answers: list[Answer] = []
    for group, size in enumerate(_group_sizes(count, rng)):
        left, operator, right = rng.randint(11, 99), rng.choice("+-*"), rng.randint(11, 99)
        problem = f"{left} {operator} {right}"
        result = {"+": left + right, "-": left - right, "*": left * right}[operator]
        for index in range(size):
            response, truth = _response(problem, result, rng)
            rollout = rf.Rollout(
                group_id=f"problem-{group}",
                index=index,
                group_size=size,
                prompt=f"What is {problem}?",
                response=response,
                ground_truth=str(result),
                data_source="arithmetic",
                extra_info={"number": len(answers)},
                step=len(answers) * STEPS // count if index == 0 else answers[-1].rollout.step,
            )
            answers.append(Answer(rollout, truth))
    return answers


def _group_sizes(count: int, rng: random.Random) -> Iterator[int]:
    while count > 0:
        size = min(rng.choice((4, 5)), count)
        yield size
        count -= size


def _response(problem: str, result: int, rng: random.Random) -> tuple[str, float | None]:
    luck = rng.random()
    if luck < 0.45:
        return f"{problem} = {result}. #### {result}", 1.0
    if luck < 0.60:
        return f"#### {result}", 0.5
    if luck < 0.80:
        slip = result + rng.choice((-10, 10))
        return f"{problem} = {slip}. #### {slip}", 0.2
    if luck < 0.997:
        wrong = result + rng.choice((-101, -7, -1, 1, 3, 50))
        return f"{problem} = {wrong}. #### {wrong}", 0.0
    return "I would rather not say.", None


def grade(solution: str, ground_truth: str) -> tuple[float, str]:
    """Score and reason. A careless parser, like many: an answer without a number makes it raise."""
    difference = abs(int(solution.rpartition("####")[2]) - int(ground_truth))
    if difference == 0:
        return (1.0, "right, with working") if "=" in solution else (0.5, "right, but no working")
    return (0.2, "a carry was lost") if difference == 10 else (0.0, "wrong")


# ---- the judge ----------------------------------------------------------------------------------------------------


@dataclass
class FlakyJudge:
    """A judge behind a rate limit that sometimes breaks, hangs or babbles, and is down for a while in the middle.

    Only the settings are fields: they tell one judge from another, in a journal too. `scale` stretches all times.
    """

    num_answers: int
    seed: int = 0
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.busy_s = 0.0  # what the answered calls took, one after another
        self._num_answered = 0
        self._down_from_s: float | None = None
        self._service = SimulatedService(
            rpm=CALLS_PER_S * 60 / self.scale,
            burst=BURST,
            latency_s=0.0,
            rejection_latency_s=REFUSAL_S * self.scale,
        )

    async def compute_score(self, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> Any:
        call = rf.current_call()
        number, attempt = extra_info["number"], call.attempt if call is not None else 1
        rng = random.Random(f"call {self.seed} {number} {attempt}")
        await self._be_admitted(rng)
        fate = self._fate(number, rng)
        await self._work(fate, rng)
        tokens = rng.randint(350, 900)
        rf.report_usage(cost_usd=tokens * 0.4e-6, tokens=tokens)
        if fate == "refuses":
            raise rf.ServiceError("422: the judge declines to rate this text", status=422, retryable=False)
        if fate == "babbles":
            return rng.choice(BABBLE)
        score, reason = grade(solution_str, ground_truth)
        return {"score": score, "query": f"Rate this answer: {solution_str}", "explanation": reason}

    async def _be_admitted(self, rng: random.Random) -> None:
        self._service.is_down = self._is_down()
        try:
            await self._service.call()
        except rf.RateLimited:
            says_when = rng.random() < RETRY_AFTER_SHARE
            raise rf.RateLimited(
                "429: too many requests", retry_after_s=RETRY_AFTER_S * self.scale if says_when else None
            ) from None
        rf.report_headers({"x-ratelimit-limit-requests": f"{ANNOUNCED_PER_S * 60 / self.scale:.0f}"})

    async def _work(self, fate: Fate, rng: random.Random) -> None:
        if fate == "hangs":
            self.busy_s += TIMEOUT_S * self.scale
            await asyncio.sleep(math.inf)
        latency_s = MEDIAN_LATENCY_S * self.scale * rng.lognormvariate(0.0, LATENCY_SPREAD)
        await asyncio.sleep(latency_s)
        if self._is_down():
            raise ConnectionResetError("the connection was lost when the service went down")
        self.busy_s += latency_s
        if fate == "resets":
            raise ConnectionResetError("connection reset by peer")
        self._num_answered += 1

    def _fate(self, number: int, rng: random.Random) -> Fate:
        for fates, luck in (
            (PER_ANSWER, random.Random(f"answer {self.seed} {number}").random()),
            (PER_CALL, rng.random()),
        ):
            for fate, share in fates:
                if luck < share:
                    return fate
                luck -= share
        return "answers"

    def _is_down(self) -> bool:
        """From when half of the answers have been judged."""
        now = asyncio.get_running_loop().time()
        if self._down_from_s is None and self._num_answered >= max(self.num_answers // 2, 1):
            self._down_from_s = now
        return self._down_from_s is not None and now < self._down_from_s + OUTAGE_S * self.scale
