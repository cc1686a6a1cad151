"""A judge that sees the answers to one prompt two at a time, each pair in both orders.

Always true: a score is the mean of all comparisons of the answer; if one comparison fails, the group fails. A verdict
keeps every reason given about its answer. Each prompt is kept with the answer that it shows first.

One call of the agent judges one group and sends many requests, up to `parallel` at a time: the service sees up to
`max_concurrency * parallel` requests, `rpm` counts groups, and `timeout_s` must cover all requests of a group.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.inner_judge import answered_by
from rewardflow.services.judges.group_prompt import (
    CHARS_PER_TOKEN,
    bytes_shown,
    check_positive,
    check_several,
    show,
    shuffled,
    system_prompt,
    texts_shown,
)
from rewardflow.services.judges.judge_wrapper import JudgeWrapper
from rewardflow.services.judges.rubric import REASON
from rewardflow.services.judges.verdict_parsing import read_verdict
from rewardflow.services.unfinished_calls import UnfinishedCalls, fill_missing
from rewardflow.types import Reward, Rollout

Winner = Literal["first", "second", "tie"]
Game = tuple[int, int]  # one comparison: the positions of the rollouts shown first and second

MAX_ALL_PAIRS = 6  # up to this many answers, all pairs are compared
_BETWEEN_QUERIES = "\n\n==========\n\n"
_SHARES: Mapping[Any, float] = {"first": 1.0, "second": 0.0, "tie": 0.5}
_OUTCOMES = {1.0: "beat", 0.0: "lost to", 0.5: "tied with"}
_GAME_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {REASON: {"type": "string"}, "better": {"type": "string", "enum": list(get_args(Winner))}},
    "required": [REASON, "better"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class PairComparison:
    """The result of one comparison. `share` is what the answer shown first gets: 1, 0 or a half."""

    share: float
    reason: str
    model: str = ""  # as the server names it

    def agrees_with(self, other: PairComparison) -> bool:
        """Whether both name the same winner; the reasons may differ."""
        return self.share == other.share


@dataclass(frozen=True, eq=False, kw_only=True)
class PairwiseJudge(JudgeWrapper):
    """Compares answers in pairs, each pair in both orders. The score is the share of comparisons won; a tie is half.

    Up to 6 answers, all pairs are compared; of more, each meets `opponents` others (an even number), drawn by the seed.
    A judge that prefers the same position in both orders gives half to each. When the agent retries a failed
    group, comparisons that were already answered are not sent again.
    """

    frozen_identity: ClassVar = FrozenIdentity("rewardflow.reward.services.pairwise:PairwiseJudge", "2")

    opponents: int = 4
    parallel: int = 4
    seed: int = 0
    max_answer_chars: int = 16_000
    version: str = ""

    def __post_init__(self) -> None:
        check_positive("parallel", self.parallel)
        check_positive("max_answer_chars", self.max_answer_chars)
        if self.opponents < 2 or self.opponents % 2:
            raise InvalidInput(f"opponents must be an even number of at least 2, got opponents={self.opponents}")

    async def score_group(self, rollouts: Sequence[Rollout]) -> list[Reward]:
        check_several(rollouts)
        pairs = draw_pairs(shuffled(rollouts, self.seed), self.opponents)
        games = [game for one, other in pairs for game in ((one, other), (other, one))]
        with self._unfinished.of_call(rollouts) as played:
            await fill_missing(games, played, functools.partial(self._compare, rollouts), self.parallel)
        return [
            replace(_reward_of(i, pairs, played, rollouts), query=self._queries(i, games, rollouts))
            for i in range(len(rollouts))
        ]

    def estimate_tokens(self, rollout: Rollout) -> int:
        """Estimates this rollout's share: half of each comparison, with two comparisons per opponent."""
        size = rollout.group_size
        met = size - 1 if size <= MAX_ALL_PAIRS else min(self.opponents, size - 1)
        other = min(len(rollout.response), self.max_answer_chars) // CHARS_PER_TOKEN
        return met * (self.judge.estimate_tokens(rollout) + other)

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        """Returns this rollout's share: its answer in two comparisons per opponent, and half of everything else."""
        if self.judge.images_shown(rollout):
            return None
        size = rollout.group_size
        met = size - 1 if size <= MAX_ALL_PAIRS else min(self.opponents, size - 1)
        shared, own = bytes_shown(rollout, self.max_answer_chars)
        bound_usd = self.judge.bound_usd(self._system, shared + 2 * own, _GAME_SCHEMA)
        return None if bound_usd is None else met * bound_usd

    def identity_settings(self) -> dict[str, Any]:
        """Leaves out `parallel`, which changes no verdict."""
        return self.identity_of("opponents", "seed", "max_answer_chars")

    async def aclose(self) -> None:
        self._unfinished.clear()
        await super().aclose()

    @functools.cached_property
    def _unfinished(self) -> UnfinishedCalls[Game, PairComparison]:
        """Results of comparisons for groups that are not finished."""
        return UnfinishedCalls()

    async def _compare(self, rollouts: Sequence[Rollout], game: Game) -> PairComparison:
        query = self._query(game, rollouts)
        images = self.judge.images_shown(rollouts[0])
        answer = await self.judge.ask(self._system, query, _GAME_SCHEMA, images=images)
        found = read_verdict(answer, (REASON, "better"), _read_game, texts_shown(rollouts, game))
        return replace(found, model=answer.model)

    def _query(self, game: Game, rollouts: Sequence[Rollout]) -> str:
        return show(rollouts, game, ["FIRST ANSWER", "SECOND ANSWER"], self.max_answer_chars)

    def _queries(self, i: int, games: Sequence[Game], rollouts: Sequence[Rollout]) -> str:
        """Returns the prompts that show this answer first, so that each prompt of the group is kept once."""
        return _BETWEEN_QUERIES.join(self._query(game, rollouts) for game in games if game[0] == i)

    @functools.cached_property
    def _system(self) -> str:
        task = "Say which answer is better, whatever its place and its length; say tie if neither is."
        form = f'{{"{REASON}": "<one or two sentences>", "better": "first" or "second" or "tie"}}'
        return system_prompt(self.judge, task, form)


def _read_game(found: Mapping[str, Any]) -> PairComparison | None:
    reason, better = found.get(REASON), found.get("better")
    if len(found) != 2 or not isinstance(reason, str) or not isinstance(better, str) or better not in _SHARES:
        return None
    return PairComparison(_SHARES[better], reason)


def _reward_of(
    i: int, pairs: Sequence[Game], played: Mapping[Game, PairComparison], rollouts: Sequence[Rollout]
) -> Reward:
    """Returns one rollout's share of its comparisons, over both orders of each pair."""
    opponents = [one if other == i else other for one, other in pairs if i in (one, other)]
    shown_first = [played[i, other].share for other in opponents]
    shown_second = [1.0 - played[other, i].share for other in opponents]
    won, count = sum(shown_first) + sum(shown_second), 2 * len(opponents)
    num_split = sum(1 for first, second in zip(shown_first, shown_second, strict=True) if first != second)
    models = [played[game].model for other in opponents for game in ((i, other), (other, i))]
    lines = [f"won {won:g} of {count} comparisons; in {num_split} of {len(opponents)} pairs the order decided"]
    for place, shares, games in (
        ("first", shown_first, [(i, other) for other in opponents]),
        ("second", shown_second, [(other, i) for other in opponents]),
    ):
        for other, share, game in zip(opponents, shares, games, strict=True):
            lines.append(f"- {_OUTCOMES[share]} index {rollouts[other].index}, shown {place}: {played[game].reason}")
    return Reward(
        value=won / count,
        explanation="\n".join(lines),
        extras={
            "won": won,
            "won_shown_first": sum(shown_first),
            "comparisons": count,
            "pairs_split_by_order": num_split,
            **answered_by(models),
        },
    )


def draw_pairs(order: Sequence[int], opponents: int) -> list[Game]:
    """Returns the pairs to compare, each once: all pairs, or for each answer its next `opponents / 2` in a ring."""
    count = len(order)
    if count <= MAX_ALL_PAIRS or opponents >= count - 1:
        return list(itertools.combinations(order, 2))
    return [
        (order[place], order[(place + distance) % count])
        for distance in range(1, opponents // 2 + 1)
        for place in range(count)
    ]
