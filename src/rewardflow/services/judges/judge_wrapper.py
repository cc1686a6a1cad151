"""What services have in common that prepare what a judge is shown, and let it judge.

Always true: all that the agent asks about the service is told by the judge behind: it makes the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewardflow.reward.code.source import RewardSource
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.service_record import ServiceRecord


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgeWrapper(ServiceRecord):
    """A service that asks `judge`."""

    judge: LLMJudge

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.judge.endpoints

    async def check(self) -> None:
        await self.judge.check()

    def price_problem(self) -> str | None:
        return self.judge.price_problem()

    async def aclose(self) -> None:
        await self.judge.aclose()

    def identity_of(self, *names: str) -> dict[str, Any]:
        """These of its settings, and who judges."""
        return {**{name: getattr(self, name) for name in names}, "judge": RewardSource.of(self.judge).find().identity}
