"""A cascade: a rule first, and a judge only where the rule cannot decide, so that most calls are never made.

Always true: every verdict says in its extras who gave it (`decided_by`: `rule` or `judge`); where the judge was asked
and failed, the verdict is failed, and the rule's number does not stand in for it.

A weighted sum of several rewards is `rewardflow.Weighted`; the agent makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.protocols import RewardLike
from rewardflow.reward.call import current_call, report_usage
from rewardflow.reward.contract import LoadedReward, load_reward
from rewardflow.reward.services.rules import Rule
from rewardflow.reward.source import RewardSource
from rewardflow.types import Reward, Rollout

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeStatistics:
    """Counts rollouts, not attempts: one that was asked about three times is asked about once here."""

    decided_by_rule: int
    judge_asked: int

    @property
    def calls_saved(self) -> int:
        return self.decided_by_rule

    @property
    def share_saved(self) -> float:
        return self.decided_by_rule / max(self.decided_by_rule + self.judge_asked, 1)


@dataclass(slots=True)
class _Counts:
    decided_by_rule: int = 0
    judge_asked: int = 0


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Asks `then` where `first.decide` returns None, and where its score is below `ask_below` or above `ask_above`.

    `Cascade(first=GSM8K(), then=judge, ask_below=1.0)` lets the judge look at what the rule calls wrong;
    `Cascade(first=Format(), then=judge, ask_above=0.5)` lets only well-formed answers through to it. Both stages should
    score on one scale. `then` is any reward that scores one rollout; what the agent asks of it goes through.
    """

    first: Rule
    then: RewardLike
    ask_below: float | None = None
    ask_above: float | None = None
    version: str = ""
    identities: tuple[str, str] = field(init=False, repr=False)  # of both stages: an edited one judges again

    def __post_init__(self) -> None:
        if not callable(getattr(self.first, "decide", None)):
            raise InvalidInput(f"first must be a rule with decide(rollout), got {type(self.first).__name__}")
        judge = self._judge
        if judge.unit != "rollout":
            raise InvalidInput(f"then must score one rollout at a time, and {judge.name} sees whole groups")
        rule = RewardSource.of(self.first.decide).find()
        object.__setattr__(self, "identities", (rule.identity, judge.identity))

    async def compute_score(self, rollout: Rollout) -> Reward:
        decided = await self._decide(rollout)
        call = current_call()
        is_first_attempt = call is None or call.attempt == 1
        if decided is not None and not self._is_to_be_asked(decided):
            self._counts.decided_by_rule += is_first_attempt
            report_usage(cost_usd=0.0)  # no call was made, whatever one would have cost
            return replace(decided, extras={**decided.extras, "decided_by": "rule"})
        self._counts.judge_asked += is_first_attempt
        reward = await self._ask(rollout)
        about_rule = {} if decided is None else {"rule_score": decided.value, "rule_explanation": decided.explanation}
        return replace(reward, extras={**reward.extras, **about_rule, "decided_by": "judge"})

    def statistics(self) -> CascadeStatistics:
        counts = self._counts
        return CascadeStatistics(decided_by_rule=counts.decided_by_rule, judge_asked=counts.judge_asked)

    # -- what the agent asks of the judge behind --

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self._judge.endpoints

    @property
    def post_process_scores(self) -> Callable[..., Any] | None:
        return self._judge.post_process

    @property
    def log(self) -> Callable[..., Any] | None:
        return self._judge.log

    @property
    def estimate_tokens(self) -> Callable[[Rollout], int] | None:
        """The judge's estimate, and nothing for a call that a quick rule will not make; None if the judge has none."""
        return None if self._judge.estimate_tokens is None else self._estimate_tokens

    async def aclose(self) -> None:
        if self._judge.close is not None:
            ended = self._judge.close()
            if hasattr(ended, "__await__"):
                await ended

    # -- inside --

    @functools.cached_property
    def _judge(self) -> LoadedReward:
        return load_reward(RewardSource.of(self.then))

    @functools.cached_property
    def _counts(self) -> _Counts:
        return _Counts()

    @property
    def _is_quick(self) -> bool:
        return bool(getattr(self.first, "is_quick", False))

    def _is_to_be_asked(self, decided: Reward | None) -> bool:
        if decided is None or decided.value is None:
            return True
        is_below = self.ask_below is not None and decided.value < self.ask_below
        return is_below or (self.ask_above is not None and decided.value > self.ask_above)

    async def _decide(self, rollout: Rollout) -> Reward | None:
        if self._is_quick:
            return self.first.decide(rollout)
        return await _in_thread(functools.partial(self.first.decide, rollout))

    async def _ask(self, rollout: Rollout) -> Reward:
        judge = self._judge
        call = functools.partial(judge.function, **judge.arguments((rollout,)))
        result = await (call() if judge.is_async else _in_thread(call))
        return judge.parse(result, 1)[0]

    def _estimate_tokens(self, rollout: Rollout) -> int:
        if self._is_quick and not self._is_to_be_asked(self.first.decide(rollout)):
            return 0
        estimate = self._judge.estimate_tokens
        return 0 if estimate is None else estimate(rollout)


async def _in_thread(function: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but a call that never ends keeps neither the loop nor the interpreter from ending."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Callable[[], T]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(outcome: Callable[[], T]) -> None:
        if not ended.done():  # cancelled: nobody waits for it any more
            ended.set_result(outcome)

    def run() -> None:
        outcome: Callable[[], T]
        try:
            outcome = functools.partial(_returned, context.run(function))
        except BaseException as error:  # whatever it is, it belongs to the caller
            outcome = functools.partial(_raised, error)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    with clock.hold(loop):
        threading.Thread(target=run, name="rewardflow-cascade", daemon=True).start()
        outcome = await ended
    return outcome()


def _returned(result: T) -> T:
    return result


def _raised(error: BaseException) -> NoReturn:
    raise error
