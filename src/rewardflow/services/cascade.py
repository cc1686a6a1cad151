"""A cascade applies a rule first, and calls a judge only where the rule cannot decide. This saves most calls.

Always true: the extras of every verdict say who decided (`decided_by`: `rule` or `judge`). If the judge's call fails,
the verdict fails; the rule's score never replaces it. The agent asks the rule once, before the call
(`decide_locally`): a verdict of the rule takes no slot and does not count against the rate limit.

For a weighted sum of several rewards, use `rewardflow.Weighted`; the agent computes the sum.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.abandonment import wait_for_thread
from rewardflow.reward.code.contract import LoadedReward, load_reward
from rewardflow.reward.code.current_call import current_call, report_usage
from rewardflow.reward.code.late_answers import LateAnswers
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.inner_judge import awaited
from rewardflow.services.rules import Rule
from rewardflow.types import Reward, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeStatistics:
    """Counts rollouts, not attempts: a rollout with three attempts counts once."""

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
    """The counts, with a lock, because rules and synchronous judges run in threads."""

    decided_by_rule: int = 0
    judge_asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What a cascade's rule said about a rollout, and the verdict if no judge is needed."""

    cascade: Cascade
    rollout: Rollout
    said: Reward | None
    verdict: Reward | None


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Asks `then` where `first.decide` returns None, and where its score is below `ask_below` or above `ask_above`.

    `Cascade(first=GSM8K(), then=judge, ask_below=1.0)` asks the judge about answers that the rule calls wrong;
    `Cascade(first=Format(), then=judge, ask_above=0.5)` sends only well-formed answers to the judge. Both stages should
    use the same scale. `then` is any reward that scores one rollout; the cascade passes on what the agent asks of it.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.hybrids:Cascade", "20714744690da38e452b6ea013945c78"
    )

    first: Rule
    then: RewardLike
    ask_below: float | None = None
    ask_above: float | None = None
    version: str = ""
    identities: tuple[str, str] = field(init=False, repr=False)  # of both stages: an edit means judging again

    # Carries opinions from `decide_locally` to the call. It is a class variable, because a module's variable would be
    # copied to worker processes, where the cascade is a copy too and would not be recognised.
    _opinions: ClassVar[contextvars.ContextVar[tuple[_Opinion, ...]]] = contextvars.ContextVar("opinions", default=())

    def __post_init__(self) -> None:
        if not callable(getattr(self.first, "decide", None)):
            raise InvalidInput(f"first must be a rule with decide(rollout), got {type(self.first).__name__}")
        judge = self._judge
        if judge.unit != "rollout":
            raise InvalidInput(f"then must score one rollout at a time, and {judge.name} sees whole groups")
        rule = RewardSource.of(self.first.decide).find()
        object.__setattr__(self, "identities", (rule.identity, judge.identity))
        _ = self._counts  # created here, so that threads do not race to create it

    def decide_locally(self, rollout: Rollout) -> Reward | None:
        """Returns the verdict if no judge is needed: the rule's, or that of a nested cascade."""
        opinion = self._consider(rollout)
        if opinion.verdict is None:
            self._opinions.set((*self._opinions.get(), opinion))
        else:
            self._count(decided_by_rule=1)
        return opinion.verdict

    @property
    def decides_quickly(self) -> bool:
        is_quick = bool(getattr(self.first, "is_quick", False))
        return is_quick and (self._judge.decide_locally is None or self._judge.decides_quickly)

    @property
    def compute_score(self) -> Callable[[Rollout], Any]:
        """Asks the judge; asks the rule first if `decide_locally` was not called. Async if `then` is async."""
        return self._compute_async if self._judge.is_async else self._compute_plain

    def statistics(self) -> CascadeStatistics:
        counts = self._counts
        return CascadeStatistics(decided_by_rule=counts.decided_by_rule, judge_asked=counts.judge_asked)

    # -- what the agent asks of the judge --

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
        return self._judge.estimate_tokens

    @property
    def cost_bound_usd(self) -> Callable[[Rollout], float | None] | None:
        return self._judge.cost_bound_usd

    @property
    def late_answers(self) -> LateAnswers | None:
        return self._judge.late_answers

    @property
    def price_problem(self) -> Callable[[], str | None] | None:
        return self._judge.price_problem

    async def check(self) -> None:
        """Runs the checks of both stages."""
        for check in (getattr(self.first, "check", None), self._judge.check):
            if check is not None:
                await awaited(check())

    async def aclose(self) -> None:
        """Closes both stages."""
        for close in (getattr(self.first, "close", None), self._judge.close):
            if close is not None:
                await awaited(close())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        """Sends only the settings to other processes, without the loaded judge and the counts."""
        settings = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.init}
        return functools.partial(type(self), **settings), ()

    # -- private --

    @functools.cached_property
    def _judge(self) -> LoadedReward:
        return load_reward(RewardSource.of(self.then))

    @functools.cached_property
    def _counts(self) -> _Counts:
        return _Counts()

    def _consider(self, rollout: Rollout) -> _Opinion:
        said, judge = self.first.decide(rollout), self._judge
        if said is not None and not self._is_to_be_asked(said):
            return _Opinion(self, rollout, said, replace(said, extras={**said.extras, "decided_by": "rule"}))
        result = None if judge.decide_locally is None else judge.decide_locally(rollout)
        return _Opinion(self, rollout, said, None if result is None else self._judged(said, result))

    def _is_to_be_asked(self, said: Reward) -> bool:
        if said.value is None:
            return True
        is_below = self.ask_below is not None and said.value < self.ask_below
        return is_below or (self.ask_above is not None and said.value > self.ask_above)

    def _earlier_opinion(self, rollout: Rollout) -> _Opinion | None:
        """Returns the opinion from `decide_locally` before this call; None if it was not called, as in direct use."""
        opinions = self._opinions.get()
        return next((one for one in opinions if one.cascade is self and _are_same(one.rollout, rollout)), None)

    def _compute_plain(self, rollout: Rollout) -> Reward:
        opinion = self._earlier_opinion(rollout) or self._consider(rollout)
        if opinion.verdict is not None:
            return self._without_call(opinion.verdict)
        self._count_attempt(judge_asked=1)
        return self._judged(opinion.said, self._judge.function(**self._judge.arguments((rollout,))))

    async def _compute_async(self, rollout: Rollout) -> Reward:
        opinion = self._earlier_opinion(rollout) or await self._consider_off_loop(rollout)
        if opinion.verdict is not None:
            return self._without_call(opinion.verdict)
        self._count_attempt(judge_asked=1)
        return self._judged(opinion.said, await self._judge.function(**self._judge.arguments((rollout,))))

    async def _consider_off_loop(self, rollout: Rollout) -> _Opinion:
        if self.decides_quickly:
            return self._consider(rollout)
        with clock.hold(asyncio.get_running_loop()):
            return await wait_for_thread(self._consider, rollout)

    def _without_call(self, verdict: Reward) -> Reward:
        self._count_attempt(decided_by_rule=1)
        report_usage(cost_usd=0.0)  # no call was made, so the default cost of a call does not apply
        return verdict

    def _judged(self, said: Reward | None, result: Any) -> Reward:
        """Adds the rule's score to the judge's result. A nested cascade already says who decided."""
        reward = self._judge.parse(result, 1)[0]
        by = "rule" if reward.extras.get("decided_by") == "rule" else "judge"
        about_rule = {} if said is None else {"rule_score": said.value, "rule_explanation": said.explanation}
        return replace(reward, extras={**reward.extras, **about_rule, "decided_by": by})

    def _count_attempt(self, **counts: int) -> None:
        call = current_call()
        if call is None or call.attempt == 1:
            self._count(**counts)

    def _count(self, *, decided_by_rule: int = 0, judge_asked: int = 0) -> None:
        with self._counts.lock:
            self._counts.decided_by_rule += decided_by_rule
            self._counts.judge_asked += judge_asked


def _are_same(one: Rollout, other: Rollout) -> bool:
    """Whether two records are the same rollout: each call may get a copy of its own, with its own nested values."""
    return one is other or (one.place, one.prompt, one.response) == (other.place, other.prompt, other.response)
