"""A jury takes several votes on an answer: samples of one judge, or verdicts of several judges.

Always true: the verdict combines all votes that were asked for; if one vote fails, the verdict fails. The extras hold
every vote, the components the agreement, so that each step's record shows how far the jury agreed. Further votes are
asked only where the first ones disagree.

One call of the agent judges one answer with several requests: `rpm` counts answers, and `timeout_s` must cover all
votes.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.inner_judge import CombiningJudge, InnerJudge, answered_by, shared_endpoints
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.unfinished_calls import UnfinishedCalls, fill_missing
from rewardflow.settings.rules import check_choice
from rewardflow.types import Reward, Rollout

Combine = Literal["mean", "median", "majority"]

GOOD = 0.5  # of a majority: votes of at least this are good


@dataclass(frozen=True, eq=False, kw_only=True)
class Jury(CombiningJudge):
    """Combines the votes of `judges`, `samples` of each, by `combine`.

    `first` votes are asked at once; the others only if two of the first differ by more than `agree_within`. By default
    all votes are asked. `majority` gives 1 if more than half of the votes are at least 0.5, 0 if fewer, else a half.
    """

    frozen_identity: ClassVar = FrozenIdentity("rewardflow.services.jury:Jury", "1")

    judges: Sequence[RewardLike]
    samples: int = 1
    combine: Combine = "mean"
    first: int | None = None
    agree_within: float = 0.0
    parallel: int = 4
    version: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.judges, str) or not isinstance(self.judges, Sequence) or not self.judges:
            raise InvalidInput(f"judges must be a list of at least one judge, got {self.judges!r:.100}")
        object.__setattr__(self, "judges", tuple(self.judges))
        check_choice("combine", self.combine, get_args(Combine))
        for name in ("samples", "parallel"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, got {name}={getattr(self, name)}")
        if self.first is not None and not 2 <= self.first <= self.num_votes:
            raise InvalidInput(
                f"first must be from 2 to the number of votes, got first={self.first}, votes={self.num_votes}"
            )
        if not self.agree_within >= 0:
            raise InvalidInput(f"agree_within must be at least 0, got {self.agree_within}")
        if self.samples > 1:
            for judge in self.judges:
                _check_samples_differ(judge)
        _ = self._members

    @property
    def num_votes(self) -> int:
        return self.samples * len(self.judges)

    async def compute_score(self, rollout: Rollout) -> Reward:
        async def vote(number: int) -> Reward:
            return await self._members[number].score(rollout)

        first = self.num_votes if self.first is None else self.first
        with self._unfinished.of_call((rollout,)) as known:
            await fill_missing(range(first), known, vote, self.parallel)
            votes = [known[number] for number in range(first)]
            if first < self.num_votes and _spread(votes) > self.agree_within:
                await fill_missing(range(self.num_votes), known, vote, self.parallel)
                votes = [known[number] for number in range(self.num_votes)]
        return self._combined(votes)

    def estimate_tokens(self, rollout: Rollout) -> int:
        """Estimates the tokens of the votes that are always asked."""
        return sum(member.estimate_tokens(rollout) for member in self._members[: self.first])

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        """Returns the most that all votes together can cost."""
        bounds = [member.cost_bound_usd(rollout) for member in self._members]
        return None if any(one is None for one in bounds) else sum(one for one in bounds if one is not None)

    def identity_settings(self) -> dict[str, Any]:
        """Leaves out `parallel`, which changes no verdict."""
        names = ("samples", "combine", "first", "agree_within")
        own = {name: getattr(self, name) for name in names}
        return {**own, "judges": [judge.loaded.identity for judge in self.inner_judges]}

    @property
    def endpoints(self) -> tuple[str, ...]:
        return shared_endpoints(self.inner_judges)

    async def aclose(self) -> None:
        self._unfinished.clear()
        await super().aclose()

    @functools.cached_property
    def inner_judges(self) -> tuple[InnerJudge, ...]:
        return tuple(InnerJudge.of("judges", judge) for judge in self.judges)

    @property
    def _members(self) -> tuple[InnerJudge, ...]:
        """The judge of each vote: first one vote of every judge, then the second, and so on."""
        return self.inner_judges * self.samples

    @functools.cached_property
    def _unfinished(self) -> UnfinishedCalls[int, Reward]:
        return UnfinishedCalls()

    def _combined(self, votes: Sequence[Reward]) -> Reward:
        scores = _scores(votes)
        names = [f"judge_{number}" for number in range(1, len(self.judges) + 1)]
        of_judge = {
            name: statistics.fmean(own) for i, name in enumerate(names) if (own := scores[i :: len(self.judges)])
        }
        said = [f"vote {number}: {vote.value:g}. {vote.explanation or ''}" for number, vote in enumerate(votes, 1)]
        return Reward(
            value=_COMBINED[self.combine](scores),
            components={"agreement": _agreement(scores), "votes": float(len(scores)), **of_judge},
            query=votes[0].query,
            explanation="\n".join(said),
            extras={
                "votes": scores,
                "spread": max(scores) - min(scores),
                **answered_by(vote.extras.get("answered_by") for vote in votes),
            },
        )


def _majority(scores: Sequence[float]) -> float:
    num_good = sum(score >= GOOD for score in scores)
    return 0.5 if 2 * num_good == len(scores) else float(2 * num_good > len(scores))


_COMBINED: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "majority": _majority,
}


def _scores(votes: Sequence[Reward]) -> list[float]:
    return [vote.value for vote in votes if vote.value is not None]  # `InnerJudge.score` returns no failure


def _spread(votes: Sequence[Reward]) -> float:
    scores = _scores(votes)
    return max(scores) - min(scores)


def _agreement(scores: Sequence[float]) -> float:
    """Returns 1 minus the mean distance between two votes."""
    distances = [abs(one - other) for one, other in combinations(scores, 2)]
    return 1.0 - statistics.fmean(distances) if distances else 1.0


def _check_samples_differ(judge: Any) -> None:
    """Refuses to pay for the same answer twice."""
    if isinstance(judge, LLMJudge):
        temperature, seed = judge.sampling.get("temperature"), judge.sampling.get("seed")
        if temperature == 0 or seed is not None:
            raise InvalidInput(
                "samples of one judge must be able to differ: set sampling.temperature above 0 and no seed, got "
                f"temperature={temperature}, seed={seed} with samples above 1"
            )
