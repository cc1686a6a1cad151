"""A cascade: a rule first, and a judge only where the rule cannot decide, so that most calls are never made.

Always true: every verdict says in its extras who gave it (`decided_by`: `rule` or `judge`); where the judge was asked
and failed, the verdict is failed, and the rule's number does not stand in for it. The rule is asked once, before the
call (`decide_locally`): what it decides takes no slot and no turn of the pace.

A weighted sum of several rewards is `rewardflow.Weighted`; the agent makes it.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.contract import LoadedReward, load_reward
from rewardflow.reward.code.current_call import current_call, report_usage
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.rules import Rule
from rewardflow.types import Reward, Rollout


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
    """Rules and plain judges count from threads."""

    decided_by_rule: int = 0
    judge_asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What a cascade's rule said of a rollout, and the verdict if no judge has to be asked."""

    cascade: Cascade
    rollout: Rollout
    said: Reward | None
    verdict: Reward | None


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Asks `then` where `first.decide` returns None, and where its score is below `ask_below` or above `ask_above`.

    `Cascade(first=GSM8K(), then=judge, ask_below=1.0)` lets the judge look at what the rule calls wrong;
    `Cascade(first=Format(), then=judge, ask_above=0.5)` lets only well-formed answers through to it. Both stages should
    score on one scale. `then` is any reward that scores one rollout; what the agent asks of it goes through.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.hybrids:Cascade", "20714744690da38e452b6ea013945c78"
    )

    first: Rule
    then: RewardLike
    ask_below: float | None = None
    ask_above: float | None = None
    version: str = ""
    identities: tuple[str, str] = field(init=False, repr=False)  # of both stages: an edited one judges again

    # From the hook to the call. Not a module's variable, which would travel to a process, where rollouts are copies.
    _opinions: ClassVar[contextvars.ContextVar[tuple[_Opinion, ...]]] = contextvars.ContextVar("opinions", default=())

    def __post_init__(self) -> None:
        if not callable(getattr(self.first, "decide", None)):
            raise InvalidInput(f"first must be a rule with decide(rollout), got {type(self.first).__name__}")
        judge = self._judge
        if judge.unit != "rollout":
            raise InvalidInput(f"then must score one rollout at a time, and {judge.name} sees whole groups")
        rule = RewardSource.of(self.first.decide).find()
        object.__setattr__(self, "identities", (rule.identity, judge.identity))
        _ = self._counts  # made here, not by the first of several threads

    def decide_locally(self, rollout: Rollout) -> Reward | None:
        """The verdict where no judge has to be asked: the rule's, or that of a cascade behind it."""
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
        """The judge's verdict, or, where nobody has asked the rule before, that of both stages; async if `then` is."""
        return self._compute_async if self._judge.is_async else self._compute_plain

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
        return self._judge.estimate_tokens

    @property
    def price_problem(self) -> Callable[[], str | None] | None:
        return self._judge.price_problem

    async def check(self) -> None:
        """Let both stages say what they lack."""
        for check in (getattr(self.first, "check", None), self._judge.check):
            if check is not None:
                await _awaited(check())

    async def aclose(self) -> None:
        if self._judge.close is not None:
            await _awaited(self._judge.close())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        """Settings travel to processes; what was loaded and counted does not."""
        settings = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.init}
        return functools.partial(type(self), **settings), ()

    # -- inside --

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

    def _told(self, rollout: Rollout) -> _Opinion | None:
        """What `decide_locally` heard before this call; None where nobody asked it, as when scoring by hand."""
        opinions = self._opinions.get()
        return next((one for one in opinions if one.cascade is self and one.rollout is rollout), None)

    def _compute_plain(self, rollout: Rollout) -> Reward:
        opinion = self._told(rollout) or self._consider(rollout)
        if opinion.verdict is not None:
            return self._without_call(opinion.verdict)
        self._count_attempt(judge_asked=1)
        return self._judged(opinion.said, self._judge.function(**self._judge.arguments((rollout,))))

    async def _compute_async(self, rollout: Rollout) -> Reward:
        opinion = self._told(rollout) or await self._consider_off_loop(rollout)
        if opinion.verdict is not None:
            return self._without_call(opinion.verdict)
        self._count_attempt(judge_asked=1)
        return self._judged(opinion.said, await self._judge.function(**self._judge.arguments((rollout,))))

    async def _consider_off_loop(self, rollout: Rollout) -> _Opinion:
        if self.decides_quickly:
            return self._consider(rollout)
        with clock.hold(asyncio.get_running_loop()):
            return await asyncio.to_thread(self._consider, rollout)

    def _without_call(self, verdict: Reward) -> Reward:
        self._count_attempt(decided_by_rule=1)
        report_usage(cost_usd=0.0)  # whatever a call would have cost
        return verdict

    def _judged(self, said: Reward | None, result: Any) -> Reward:
        """What the judge returned, beside what the rule said; a cascade behind knows better who decided."""
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


async def _awaited(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
