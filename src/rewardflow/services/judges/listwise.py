"""A judge that sees all answers to one prompt in one call, and scores or ranks them.

Always true: rewards come back in the order of the rollouts, whatever order the judge saw. A verdict that does not name
every answer exactly once is `Unparsable`, and fails the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.identity import FrozenIdentity
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
from rewardflow.services.judges.rubric import REASON, Criterion, JudgeVerdict, Rubric
from rewardflow.services.judges.verdict_parsing import read_verdict
from rewardflow.settings.rules import check_choice
from rewardflow.types import Reward, Rollout

ListwiseMode = Literal["scores", "ranking"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ListwiseJudge(JudgeWrapper):
    """Shows `judge` all answers at once and asks for a score of each, or for their order from best to worst.

    Scores from `low` to `high` are scaled to 0 to 1. A ranking gives 1 to the best, 0 to the worst and equal steps
    between. The criteria are those of `judge`; its template is not used.
    """

    frozen_identity: ClassVar = FrozenIdentity("rewardflow.reward.services.listwise:ListwiseJudge", "2")

    mode: ListwiseMode = "scores"
    low: int = 0
    high: int = 10
    seed: int = 0
    max_answer_chars: int = 8000
    version: str = ""

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(ListwiseMode))
        if self.low >= self.high:
            raise InvalidInput(f"low must be below high, got low={self.low}, high={self.high}")
        check_positive("max_answer_chars", self.max_answer_chars)

    async def score_group(self, rollouts: Sequence[Rollout]) -> list[Reward]:
        if self.mode == "ranking":
            check_several(rollouts)
        order = shuffled(rollouts, self.seed)
        query = show(rollouts, order, [f"ANSWER {place}" for place in range(1, len(order) + 1)], self.max_answer_chars)
        shape = self._shape(len(order))
        images = self.judge.images_shown(rollouts[0])
        answer = await self.judge.ask(self._system(shape), query, shape.schema, images=images)
        verdict = read_verdict(answer, shape.keys, self._read(shape), texts_shown(rollouts, order))
        values = self._values(verdict, shape)
        told = {"answered_by": answer.model} if answer.model else {}
        by_rollout = {rollout: place for place, rollout in enumerate(order)}
        return [
            Reward(
                value=values[by_rollout[i]],
                query=query if i == 0 else None,  # long, and the same for the whole group
                explanation=verdict.reason,
                extras={"shown_as": by_rollout[i] + 1, **told},
            )
            for i in range(len(rollouts))
        ]

    def estimate_tokens(self, rollout: Rollout) -> int:
        """Estimates this rollout's share: its answer, and its part of the text that the group shares."""
        once = self.judge.estimate_tokens(replace(rollout, response=""))
        own = min(len(rollout.response), self.max_answer_chars) // CHARS_PER_TOKEN
        return own + -(-once // rollout.group_size)

    def cost_bound_usd(self, rollout: Rollout) -> float | None:
        """Returns this rollout's share: its answer, and its part of the rest of the group's one request."""
        if self.judge.images_shown(rollout):
            return None
        size = rollout.group_size
        shared, own = bytes_shown(rollout, self.max_answer_chars)
        shape = self._shape(size)
        bound_usd = self.judge.bound_usd(self._system(shape), shared + size * own, shape.schema)
        return None if bound_usd is None else bound_usd / size

    def identity_settings(self) -> dict[str, Any]:
        return self.identity_of("mode", "low", "high", "seed", "max_answer_chars")

    def _shape(self, count: int) -> Rubric:
        """Returns a flat shape with one number per answer or per place, because every server can enforce that."""
        name, low, high = ("answer", self.low, self.high) if self.mode == "scores" else ("place", 1, count)
        return Rubric(tuple(Criterion(f"{name}_{number}", low=low, high=high) for number in range(1, count + 1)))

    def _system(self, shape: Rubric) -> str:
        numbers = ", ".join(f'"{key}": <number>' for key in shape.keys[1:])
        if self.mode == "scores":
            task = (
                f"Score every answer from {self.low} (worst) to {self.high} (best), a whole number each; "
                "answer_1 is the score of ANSWER 1, and so on."
            )
        else:
            task = (
                "Order the answers from best to worst; place_1 is the number of the best answer, place_2 of the second "
                "best, and so on. Every answer has exactly one place."
            )
        return system_prompt(self.judge, task, f'{{"{REASON}": "<one or two sentences>", {numbers}}}')

    def _read(self, shape: Rubric) -> Callable[[Mapping[str, Any]], JudgeVerdict | None]:
        def read(found: Mapping[str, Any]) -> JudgeVerdict | None:
            verdict = shape.read(found)
            if verdict is None or self.mode == "scores":
                return verdict
            is_permutation = sorted(verdict.scores.values()) == list(range(1, len(verdict.scores) + 1))
            return verdict if is_permutation else None

        return read

    def _values(self, verdict: JudgeVerdict, shape: Rubric) -> list[float]:
        """Returns the values in the order in which the answers were shown."""
        if self.mode == "scores":
            return list(shape.normalised(verdict.scores).values())
        count = len(verdict.scores)
        values = [0.0] * count
        for rank, number in enumerate(verdict.scores.values()):
            values[int(number) - 1] = (count - 1 - rank) / (count - 1)
        return values
