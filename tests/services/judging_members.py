"""A judge for tests of rewards that ask other judges: it says what it is told to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import rewardflow as rf


@dataclass
class Member:
    """Says `says(rollout)`, or the next of several; fails as often as `fails` says."""

    says: Callable[[rf.Rollout], float | rf.Reward]
    cost_usd: float = 1.0
    fails: int = 0
    asked: list[str] = field(default_factory=list)
    is_closed: bool = False
    is_checked: bool = False
    version: str = ""

    async def compute_score(self, rollout: rf.Rollout) -> rf.Reward:
        await asyncio.sleep(1.0)
        if self.fails:
            self.fails -= 1
            raise rf.ServiceError("down", status=503)
        self.asked.append(rollout.response)
        rf.report_usage(cost_usd=self.cost_usd)
        found = self.says(rollout)
        return found if isinstance(found, rf.Reward) else rf.Reward(value=found, explanation=f"I say {found:g}")

    def identity_settings(self) -> dict[str, str]:
        return {"version": self.version}

    def cost_bound_usd(self, rollout: rf.Rollout) -> float | None:
        return self.cost_usd

    def estimate_tokens(self, rollout: rf.Rollout) -> int:
        return 100

    def price_problem(self) -> str | None:
        return None

    async def check(self) -> None:
        self.is_checked = True

    async def aclose(self) -> None:
        self.is_closed = True
