"""The base class of judges that wrap an `LLMJudge`: they prepare what it is shown, and it makes the calls.

Always true: endpoints, checks and prices are those of the wrapped judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewardflow.reward.code.late_answers import LateAnswers
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.service_record import ServiceRecord


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgeWrapper(ServiceRecord):
    """A service that makes its calls through `judge`."""

    judge: LLMJudge

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.judge.endpoints

    @property
    def late_answers(self) -> LateAnswers | None:
        return self.judge.late_answers

    async def check(self) -> None:
        await self.judge.check()

    def price_problem(self) -> str | None:
        return self.judge.price_problem()

    async def aclose(self) -> None:
        await self.judge.aclose()

    def identity_of(self, *names: str) -> dict[str, Any]:
        """Returns the named settings and the identity of the wrapped judge."""
        return {**{name: getattr(self, name) for name in names}, "judge": RewardSource.of(self.judge).find().identity}
