"""Asks a cheap judge about every answer of a group, and a dear one only where its verdict could change an advantage.

Always true: the extras of each verdict say who decided (`first`, `then` or `corrected`), the components say whether the
dear judge was asked. Of a group that is not audited, `share` is asked of the dear judge at most. Where that is not a
whole number, it is rounded up in as many groups as makes `share` hold in the mean: of groups of 2 with a share of 0.3,
one answer in 60 % of the groups. Which answers are asked, which groups are rounded up and which are audited follows
from the group alone, so that a resumed run asks the same.

A cheap score that is certain stays. An uncertain answer for which the budget is too small gets the cheap score plus the
mean difference between dear and cheap scores of the group's asked answers, if there are any: without this correction, a
cheap judge that is too generous would reward exactly the answers that nobody checked. An answer about which the cheap
judge said nothing that can be read is the most uncertain one: the dear judge is asked about it first. Only if the
budget is too small for all such answers does the call fail, and the agent's next attempt asks the cheap judge again.

One call of the agent judges one group with many requests, up to `parallel` at a time: `rpm` counts groups, and
`timeout_s` must cover all requests of a group.
"""

from __future__ import annotations

import functools
import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewardflow.errors import InvalidInput, Unparsable
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.inner_judge import CombiningJudge, InnerJudge
from rewardflow.services.unfinished_calls import UnfinishedCalls, fill_missing
from rewardflow.types import Reward, Rollout

FIRST, THEN, CORRECTED = "first", "then", "corrected"

Question = tuple[str, int]  # one request: to which judge, and about which rollout of the group


@dataclass(frozen=True, eq=False, kw_only=True)
class Escalation(CombiningJudge):
    """Asks `then` about the answers of a group that `first` is not certain about, at most `share` of all in the mean.

    A score of `first` is uncertain if it lies from `between[0]` to `between[1]`, if it is within `margin` of the mean
    of its group, so that the sign of its advantage could change, or if `first` is a jury that agrees less than
    `agreement`. A rule that is not set makes nothing uncertain. In `audit_share` of the groups all answers are asked,
    which measures the change in advantages. Both judges should use the same scale.
    """

    frozen_identity: ClassVar = FrozenIdentity("rewardflow.services.escalation:Escalation", "2")

    first: RewardLike
    then: RewardLike
    between: tuple[float, float] | None = None
    margin: float | None = None
    agreement: float | None = None
    share: float = 0.3
    audit_share: float = 0.02
    parallel: int = 4
    seed: int = 0
    version: str = ""

    def __post_init__(self) -> None:
        if self.between is None and self.margin is None and self.agreement is None:
            raise InvalidInput("one of between, margin and agreement must say when a score is uncertain, got none")
        if self.between is not None:
            object.__setattr__(self, "between", tuple(self.between))
            if len(self.between) != 2 or not self.between[0] <= self.between[1]:
                raise InvalidInput(f"between must be two numbers in order, got {self.between}")
        if self.margin is not None and not self.margin >= 0:
            raise InvalidInput(f"margin must be at least 0, got {self.margin}")
        for name in ("share", "audit_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.parallel < 1:
            raise InvalidInput(f"parallel must be at least 1, got {self.parallel}")
        _ = self.inner_judges

    async def score_group(self, rollouts: Sequence[Rollout]) -> list[Reward]:
        with self._unfinished.of_call(rollouts) as known:
            return await self._scored(rollouts, known)

    async def _scored(self, rollouts: Sequence[Rollout], known: dict[Question, Reward]) -> list[Reward]:
        first, then = self.inner_judges

        async def ask(question: Question) -> Reward:
            judge, i = question
            return await (_scored_or_unread(first, rollouts[i]) if judge == FIRST else then.score(rollouts[i]))

        await fill_missing([(FIRST, i) for i in range(len(rollouts))], known, ask, self.parallel)
        cheap = [known[FIRST, i] for i in range(len(rollouts))]
        budget = self._budget(rollouts)
        unread = [i for i, reward in enumerate(cheap) if reward.value is None]
        if len(unread) > budget:
            for i in unread:
                del known[FIRST, i]  # so that the agent's next attempt asks about them again
            raise Unparsable(cheap[unread[0]].error or "the cheap judge said nothing that can be read")
        uncertain = self._uncertain(cheap)
        in_turn = sorted(uncertain, key=lambda i: _draw(self.seed, rollouts[i], "ask"))
        chosen = [*unread, *in_turn][:budget]
        is_audited = _draw_share(self.seed, rollouts[0], "audit") < self.audit_share
        asked = range(len(rollouts)) if is_audited else chosen
        await fill_missing([(THEN, i) for i in asked], known, ask, self.parallel)
        dear = {i: known[THEN, i] for i in asked}
        rewards = _mixed(cheap, {i: dear[i] for i in chosen}, uncertain)
        return _with_audit(rewards, dear) if is_audited else rewards

    def estimate_tokens(self, rollout: Rollout) -> int:
        """Estimates this rollout's share: the cheap verdict, and its part of the dear ones."""
        first, then = self.inner_judges
        return first.estimate_tokens(rollout) + round(self.share * then.estimate_tokens(rollout))

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        """Returns the most that this rollout can cost: both verdicts, because its group may be audited."""
        bounds = [judge.cost_bound_usd(rollout) for judge in self.inner_judges]
        return None if any(one is None for one in bounds) else sum(one for one in bounds if one is not None)

    def identity_settings(self) -> dict[str, Any]:
        """Leaves out `parallel`, which changes no verdict."""
        names = ("between", "margin", "agreement", "share", "audit_share", "seed")
        own = {name: getattr(self, name) for name in names}
        return {**own, "judges": [judge.loaded.identity for judge in self.inner_judges]}

    async def aclose(self) -> None:
        self._unfinished.clear()
        await super().aclose()

    @functools.cached_property
    def inner_judges(self) -> tuple[InnerJudge, ...]:
        return InnerJudge.of("first", self.first), InnerJudge.of("then", self.then)

    @functools.cached_property
    def _unfinished(self) -> UnfinishedCalls[Question, Reward]:
        return UnfinishedCalls()

    def _budget(self, rollouts: Sequence[Rollout]) -> int:
        """Returns how many answers of this group may be asked of the dear judge."""
        exact = self.share * len(rollouts)
        whole = math.floor(exact + 1e-9)
        return whole + (_draw_share(self.seed, rollouts[0], "budget") < exact - whole)

    def _uncertain(self, cheap: Sequence[Reward]) -> list[int]:
        """Returns the answers with a score that is uncertain."""
        scores = [reward.value for reward in cheap if reward.value is not None]
        mean = statistics.fmean(scores) if scores else 0.0
        return [
            i
            for i, reward in enumerate(cheap)
            if reward.value is not None and self._is_uncertain(reward.value, mean, reward.components)
        ]

    def _is_uncertain(self, score: float, mean: float, components: Mapping[str, float | None]) -> bool:
        if self.between is not None and self.between[0] <= score <= self.between[1]:
            return True
        if self.margin is not None and abs(score - mean) <= self.margin:
            return True
        agreed = components.get("agreement")
        return self.agreement is not None and agreed is not None and agreed < self.agreement


def _mixed(cheap: Sequence[Reward], dear: Mapping[int, Reward], uncertain: Sequence[int]) -> list[Reward]:
    """Combines the verdicts of both judges into one for each answer."""
    shifts = [_score(said) - first for i, said in dear.items() if (first := cheap[i].value) is not None]
    shift = statistics.fmean(shifts) if shifts else 0.0
    unchecked = frozenset(uncertain) - frozenset(dear) if shifts else frozenset()
    rewards = []
    for i, reward in enumerate(cheap):
        said = dear.get(i, reward)
        by = THEN if i in dear else CORRECTED if i in unchecked else FIRST
        value = _score(reward) + shift if by == CORRECTED else _score(said)
        rewards.append(
            Reward(
                value=value,
                components={"asked": float(i in dear), "first": reward.value},
                query=said.query,
                explanation=said.explanation,
                extras={**said.extras, "decided_by": by, "first_score": reward.value},
            )
        )
    return rewards


def _with_audit(rewards: Sequence[Reward], dear: Mapping[int, Reward]) -> list[Reward]:
    """Adds what the dear judge alone would have changed: the mean change of an advantage in this group."""
    mixed = normalised([_score(reward) for reward in rewards])
    full = normalised([_score(dear[i]) for i in range(len(rewards))])
    change = statistics.fmean(abs(one - other) for one, other in zip(mixed, full, strict=True))
    return [
        Reward(
            value=reward.value,
            components={**reward.components, "advantage_change": change},
            query=reward.query,
            explanation=reward.explanation,
            extras={**reward.extras, "audited_score": dear[i].value},
        )
        for i, reward in enumerate(rewards)
    ]


def normalised(scores: Sequence[float]) -> list[float]:
    """Returns scores minus their mean, divided by their standard deviation: zeros if they are all the same."""
    mean, spread = statistics.fmean(scores), statistics.pstdev(scores)
    return [(score - mean) / spread if spread > 0 else 0.0 for score in scores]


async def _scored_or_unread(judge: InnerJudge, rollout: Rollout) -> Reward:
    try:
        return await judge.score(rollout)
    except Unparsable as error:
        return Reward(value=None, kind="unparsable", error=str(error))


def _score(reward: Reward) -> float:
    if reward.value is None:  # an answer that the cheap judge did not score has a score of the dear one
        raise InvalidInput("a verdict inside an escalation must have a score, got a failed one")
    return reward.value


def _draw(seed: int, rollout: Rollout, purpose: str, *, whole_group: bool = False) -> bytes:
    text = f"{seed}\0{purpose}\0{rollout.step}\0{rollout.group_id}\0{'' if whole_group else rollout.index}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _draw_share(seed: int, rollout: Rollout, purpose: str) -> float:
    """Draws a number from 0 to 1 for the rollout's group."""
    return int.from_bytes(_draw(seed, rollout, purpose, whole_group=True), "big") / 2.0**64
