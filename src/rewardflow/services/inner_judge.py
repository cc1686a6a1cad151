"""Calls judges from inside another reward: for rewards that combine the verdicts of several.

Always true: an inner verdict is scored, or its failure is raised as the error of its kind, so that the agent treats the
outer call as it would have treated the inner one. What an inner verdict cost counts for the outer call, also if the
verdict failed. No judge sees what another one writes into the rollout's values.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow import clock
from rewardflow.errors import CallError, InvalidInput, RateLimited, ServiceError, Unparsable
from rewardflow.reward.code.abandonment import wait_for_thread
from rewardflow.reward.code.contract import LoadedReward, load_reward, with_own_values
from rewardflow.reward.code.current_call import report_usage
from rewardflow.reward.code.late_answers import LateAnswers, SeveralLateAnswers
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.service_record import ServiceRecord
from rewardflow.types import Reward, Rollout


@dataclass(frozen=True, slots=True)
class InnerJudge:
    """A judge of single rollouts that another reward asks."""

    loaded: LoadedReward

    @classmethod
    def of(cls, name: str, reward: RewardLike) -> InnerJudge:
        """Loads the judge; `name` is the setting that holds it."""
        loaded = load_reward(RewardSource.of(reward))
        if loaded.unit != "rollout":
            raise InvalidInput(f"{name} must score one rollout at a time, and {loaded.name} sees whole groups")
        return cls(loaded)

    async def score(self, rollout: Rollout) -> Reward:
        """Returns the judge's scored verdict, or raises."""
        loaded = self.loaded
        ask = loaded.decide_locally
        decided = None if ask is None else await self._run(ask, with_own_values(rollout))
        if decided is None:
            arguments = loaded.arguments((with_own_values(rollout),))
            if loaded.is_async:
                decided = await loaded.function(**arguments)
            else:
                decided = await self._run(functools.partial(loaded.function, **arguments))
        reward = loaded.parse(decided, 1)[0]
        if reward.cost_usd or reward.tokens:  # told in the result; the outer verdict would not have it
            report_usage(cost_usd=reward.cost_usd or None, tokens=reward.tokens)
        if reward.value is None:
            raise _error_of(reward)
        return reward

    async def _run(self, function: Any, *arguments: Any) -> Any:
        with clock.hold(asyncio.get_running_loop()):
            return await wait_for_thread(function, *arguments)

    def estimate_tokens(self, rollout: Rollout) -> int:
        return 0 if self.loaded.estimate_tokens is None else self.loaded.estimate_tokens(rollout)

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        return None if self.loaded.cost_bound_usd is None else self.loaded.cost_bound_usd(rollout)


@dataclass(frozen=True, eq=False, kw_only=True)
class CombiningJudge(ServiceRecord):
    """A reward that asks several judges: it has their prices, checks and late answers."""

    @functools.cached_property
    def inner_judges(self) -> tuple[InnerJudge, ...]:
        """Each judge once."""
        raise NotImplementedError

    def price_problem(self) -> str | None:
        """Returns the first judge's problem with prices."""
        asked = (judge.loaded.price_problem for judge in self.inner_judges)
        return next((problem for ask in asked if ask is not None and (problem := ask()) is not None), None)

    async def check(self) -> None:
        for judge in self.inner_judges:
            if judge.loaded.check is not None:
                await awaited(judge.loaded.check())

    async def aclose(self) -> None:
        for judge in self.inner_judges:
            if judge.loaded.close is not None:
                await awaited(judge.loaded.close())

    @property
    def late_answers(self) -> LateAnswers | None:
        found = [one for judge in self.inner_judges if (one := judge.loaded.late_answers) is not None]
        return SeveralLateAnswers(found) if found else None


def shared_endpoints(judges: Sequence[InnerJudge]) -> tuple[str, ...]:
    """Returns the endpoints of the judges if they are the same for all; else none, and each uses its own first."""
    distinct = {judge.loaded.endpoints for judge in judges}
    return next(iter(distinct)) if len(distinct) == 1 else ()


def answered_by(told: Iterable[object]) -> dict[str, list[str]]:
    """Returns, for the extras of a verdict made of several answers, the models that they name; empty if none does.

    What an answer tells is a name, or a list of names if it was made of several itself.
    """
    names = (name for one in told for name in (one if isinstance(one, list | tuple) else (one,)))
    models = sorted({name for name in names if isinstance(name, str) and name})
    return {"answered_by": models} if models else {}


def _error_of(reward: Reward) -> CallError:
    """Returns the error that makes the agent treat the outer call as it would have treated the inner one."""
    text = reward.error or f"the inner judge failed: {reward.kind}"
    if reward.kind == "unparsable":
        return Unparsable(text)
    return (
        RateLimited(text) if reward.kind == "rate_limited" else ServiceError(text, retryable=reward.kind == "service")
    )


async def awaited(result: Any) -> None:
    """Waits for the result of a hook that may or may not be async."""
    if inspect.isawaitable(result):
        await result
