"""Fakes a generator, a trainer and prompts, which only take time: for tests, docs and simulations of the real loop.

Always true: they keep every promise of the protocols, take their time from the running loop, and record what they did.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rewardflow.flow.records import GroupRequest, MicroBatch, PrecomputedOf, Prompt, UpdateReport
from rewardflow.types import Rollout, ScoredGroup


class FakePrompts:
    """Prompts whose text is their number."""

    def __init__(self) -> None:
        self.num_made = 0
        self._returned: list[Prompt] = []

    def take(self, count: int) -> Sequence[Prompt]:
        taken, self._returned = self._returned[:count], self._returned[count:]
        fresh = range(self.num_made, self.num_made + count - len(taken))
        self.num_made = fresh.stop
        return [*taken, *(Prompt(uid=str(i), text=str(i), ground_truth=str(i)) for i in fresh)]

    def give_back(self, prompts: Sequence[Prompt]) -> None:
        self._returned = [*prompts, *self._returned]


@dataclass(slots=True, kw_only=True)
class FakeGenerator:
    """Finishes one rollout every `rollout_s` seconds; `num_tokens` gives its length."""

    rollout_s: float = 0.0
    num_tokens: Callable[[GroupRequest, int], int] = lambda request, index: 4
    version: int = 0
    generated: list[tuple[int, int]] = field(default_factory=list)  # (step, version) of each call

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        version = self.version
        self.generated.append((requests[0].step, version))
        for request in requests:
            for index in range(request.group_size):
                await asyncio.sleep(self.rollout_s)
                yield self._rollout(request, index, version)

    def _rollout(self, request: GroupRequest, index: int, version: int) -> Rollout:
        length = self.num_tokens(request, index)
        return Rollout(
            group_id=request.group_id,
            index=index,
            group_size=request.group_size,
            step=request.step,
            position=request.number,
            prompt=request.prompt.text,
            response=f"{request.prompt.uid}.{index}",
            extra_info=request.extra_info_of(index),
            ground_truth=request.prompt.ground_truth,
            token_ids=array("l", [0] * (length + 1)),
            response_mask=array("b", [0] + [1] * length),
            log_probs=array("f", [0.0] * (length + 1)),
            policy_version=version,
        )

    async def publish(self, version: int) -> None:
        self.version = version


@dataclass(slots=True, kw_only=True)
class FakeTrainer:
    """Takes the given seconds for each rollout and each update, and records the batches."""

    log_probs_s: float = 0.0
    forward_backward_s: float = 0.0
    optim_s: float = 0.0
    batches: list[MicroBatch] = field(default_factory=list)
    num_updates: int = 0
    num_log_probs: int = 0
    open_step: int | None = None

    @contextlib.asynccontextmanager
    async def step(self, number: int) -> AsyncIterator[None]:
        self.open_step = number
        try:
            yield
        finally:
            self.open_step = None

    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[object]:
        await asyncio.sleep(self.log_probs_s * len(rollouts))
        self.num_log_probs += len(rollouts)
        return [(of, self.num_updates)] * len(rollouts)

    async def values(self, rollouts: Sequence[Rollout]) -> Sequence[object]:
        await asyncio.sleep(self.log_probs_s * len(rollouts))
        return [("values", self.num_updates)] * len(rollouts)

    async def forward_backward(self, batch: MicroBatch) -> None:
        await asyncio.sleep(self.forward_backward_s * len(batch.samples))
        self.batches.append(batch)

    async def optim_step(self, token_share: float = 1.0) -> UpdateReport:
        await asyncio.sleep(self.optim_s)
        self.num_updates += 1
        return UpdateReport(num_sequences=0, num_tokens=0, grad_norm=0.0, lr=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CentredScores:
    """Advantages: the score minus the mean of the group's scores."""

    needs: Literal["group", "mini_batch", "batch"] = "group"

    def __call__(
        self, groups: Sequence[ScoredGroup], precomputed_of: PrecomputedOf | None = None
    ) -> Sequence[Sequence[object]]:
        return [self._of(group) for group in groups]

    def _of(self, group: ScoredGroup) -> list[float]:
        scores = [reward.value for reward in group.rewards if reward.value is not None]
        mean = sum(scores) / max(len(scores), 1)
        return [0.0 if reward.value is None else reward.value - mean for reward in group.rewards]
