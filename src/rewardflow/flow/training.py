"""Trains one open step: takes selected groups as they become ready, in mini-batches, and updates the weights.

Always true: `stream` decides only how much must be scored before the device starts; a mini-batch ends with one update;
old log-probs and values come from the weights before the step's first update, and no reserves are generated after it;
a group's baseline is compared with and never trained on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rewardflow.flow.flow_parts import Devices, FlowParts
from rewardflow.flow.generation import generate_reserves
from rewardflow.flow.group_selection import Selection
from rewardflow.flow.micro_batches import plan_micro_batches
from rewardflow.flow.open_step import OpenStep
from rewardflow.flow.precompute import precompute_before_updates
from rewardflow.flow.records import JudgedRollout, MicroBatch, Sample, is_truncated
from rewardflow.flow.step_record import StepRecord


class StepTraining:
    """`await StepTraining(parts, devices, open_step, record).run(updating)`; the caller publishes the weights."""

    def __init__(self, parts: FlowParts, devices: Devices, open_step: OpenStep, record: StepRecord) -> None:
        self._parts = parts
        self._schedule = parts.schedule
        self._devices = devices
        self._step = open_step
        self._record = record
        self._selections: list[Selection] = []  # taken so far, in the order of training
        self._samples: dict[int, tuple[Sample, ...]] = {}
        self._has_updated = False
        num_tokens = open_step.num_tokens // self._schedule.mini_batches
        self._plan = plan_micro_batches(  # number of selections in each micro-batch of a mini-batch
            self._schedule.groups_per_mini_batch, num_tokens, parts.micro_batch_tokens
        )

    async def run(self, updating: contextlib.ExitStack) -> None:
        """Makes the updates of the step. Nothing is generated from the first one until the caller closes `updating`."""
        await self._precompute_before_updates()
        for epoch in range(self._schedule.epochs):
            for index in range(self._schedule.mini_batches):
                await self._wait_for_mini_batch(index)
                await self._train_mini_batch(index, epoch)
                if not self._has_updated:
                    self._has_updated = True
                    self._step.end_refill()
                    updating.enter_context(self._devices.trainer.updating())
                await self._update(index, epoch)

    async def _train_mini_batch(self, index: int, epoch: int) -> None:
        first = index * self._schedule.groups_per_mini_batch
        for i, count in enumerate(self._plan):
            await self._wait_for(first + count)
            samples = self._samples_of(self._selections[first : first + count])
            batch = MicroBatch(
                step=self._step.step, mini_batch=index, samples=samples, is_last=i == len(self._plan) - 1
            )
            async with self._devices.trainer.lease("update", self._step.step):
                await self._parts.trainer.forward_backward(batch)
            if epoch == 0:
                self._record.trained(samples, index)
            first += count

    async def _update(self, index: int, epoch: int) -> None:
        size = self._schedule.groups_per_mini_batch
        token_share = self._step.token_share(self._selections[index * size : (index + 1) * size])
        async with self._devices.trainer.lease("update", self._step.step):
            report = await self._parts.trainer.optim_step(token_share)
        self._record.updated(replace(report, mini_batch=index, epoch=epoch))

    def judged(self) -> Iterator[JudgedRollout]:
        """Yields every judged rollout of the step, with why it was not trained. Call it when the step is trained."""
        for number, group in sorted(self._step.scored.items()):
            why_not = self._step.reason_to_drop(group)
            samples = {sample.rollout.index: sample for sample in self._samples.get(number, ())}
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
                if (sample := samples.get(rollout.index)) is not None:
                    yield JudgedRollout(
                        rollout=rollout,
                        reward=reward,
                        advantage=sample.advantage if sample.why_not is None else None,
                        why_not=sample.why_not,
                    )
                else:
                    yield JudgedRollout(
                        rollout=rollout, reward=reward, why_not=why_not or ("baseline" if samples else "not_needed")
                    )

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def _wait_for_mini_batch(self, index: int) -> None:
        """Waits for as many groups as `stream` says, and computes advantages that need more than one group."""
        size = self._schedule.groups_per_mini_batch
        whole, own = (0, self._schedule.groups_per_step), (index * size, (index + 1) * size)
        if self._schedule.stream != "micro_batch":
            await self._wait_for(whole[1] if self._schedule.stream == "batch" else own[1])
        needs = self._parts.advantages.needs
        if needs != "group":
            first, last = whole if needs == "batch" else own
            self._samples_of(self._selections[first:last])

    async def _wait_for(self, num_selections: int) -> None:
        """Takes selections until it has `num_selections`."""
        while len(self._selections) + self._step.num_ready < num_selections:
            if self._step.lacks_reserves:
                await self._refill()
            else:
                await self._wait_for_verdicts()
        self._selections += self._step.take(max(0, num_selections - len(self._selections)))

    async def _wait_for_verdicts(self) -> None:
        """Waits until a group is settled. After `straggler_s` without one, cancels the groups that are being judged."""
        with self._devices.trainer.usage.waiting_for("reward"):
            try:
                async with asyncio.timeout(self._schedule.straggler_s):
                    await self._step.wait_for_change()
            except TimeoutError:
                self._step.give_up_stragglers()

    async def _refill(self) -> None:
        if self._has_updated or self._step.num_rounds >= self._schedule.refill_rounds:
            self._step.end_refill()
            return
        with self._devices.trainer.usage.waiting_for("generation"):
            await generate_reserves(self._parts, self._devices, self._step)
        await self._precompute_before_updates()

    async def _precompute_before_updates(self) -> None:
        await precompute_before_updates(self._parts, self._devices.trainer, self._step)

    # -- samples -----------------------------------------------------------------------------------------------------

    def _samples_of(self, selections: Sequence[Selection]) -> tuple[Sample, ...]:
        numbers = [selection.number for selection in selections if selection.number is not None]
        new = [number for number in numbers if number not in self._samples]
        groups = [self._step.scored[number] for number in new]
        all_advantages = self._parts.advantages(groups, self._step.precomputed_of)
        for number, group, advantages in zip(new, groups, all_advantages, strict=True):
            self._samples[number] = tuple(
                Sample(
                    rollout=rollout,
                    reward=reward,
                    advantage=advantage,
                    precomputed=self._step.precomputed_of(rollout),
                    is_masked=self._parts.mask_truncated and is_truncated(rollout),
                )
                for rollout, reward, advantage in zip(group.rollouts, group.rewards, advantages, strict=True)
                if not self._step.is_baseline(rollout)
            )
        return tuple(sample for number in numbers for sample in self._samples[number])
