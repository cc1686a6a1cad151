"""Tracks one step from admission to publishing: its rollouts, its verdicts, and the groups ready to train.

Always true: every requested group has exactly one fate: trained, dropped with a reason, or never judged because it
stayed in reserve; a group's verdicts are those that the step's ticket delivered for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from rewardflow.flow.device_usage import DeviceUsage
from rewardflow.flow.group_selection import GroupSelection, Selection
from rewardflow.flow.protocols import Rewards
from rewardflow.flow.records import (
    DropReason,
    GroupRequest,
    Precomputed,
    PreparedRollout,
    Prompt,
    Sampling,
    SavedStep,
    num_sampled_tokens,
    num_tokens,
)
from rewardflow.flow.schedule import Schedule
from rewardflow.reward.ticket import Ticket
from rewardflow.types import Reward, Rollout, ScoredGroup


class OpenStep:
    """The state of one step. Generation adds rollouts, the agent adds verdicts, training takes groups."""

    def __init__(self, step: int, first_number: int, schedule: Schedule, agent: Rewards, usage: DeviceUsage) -> None:
        self.step = step
        self.ticket: Ticket = agent.open()
        self.ticket.watch(self._landed)
        self._agent = agent
        self._verdicts_out: Counter[int] = Counter()  # by group; one for each reward and rollout
        self._failed: dict[int, set[int]] = {}
        self.is_generated = asyncio.Event()
        self.num_rounds = 0
        self.dropped: Counter[DropReason] = Counter()
        self.scored: dict[int, ScoredGroup] = {}
        self._schedule = schedule
        self._usage = usage
        self._first_number = self._next_number = first_number
        self._requests: dict[int, GroupRequest] = {}
        self._rollouts: dict[int, dict[int, Rollout]] = {}
        self._precomputed: dict[tuple[int, int], Precomputed] = {}
        self._in_reserve: set[int] = set()
        self._selection = GroupSelection(range(first_number, first_number + schedule.groups_per_step), schedule.order)
        self._changed = asyncio.Event()
        self._num_sampled_tokens: int | None = None

    # -- generation --------------------------------------------------------------------------------------------------

    def ask(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, *, has_baseline: bool = False
    ) -> list[GroupRequest]:
        """Returns requests for the step's groups and then its reserves; in later calls, for a round of reserves."""
        requests = [
            GroupRequest(
                number=number,
                step=self.step,
                prompt=prompt,
                group_size=group_size,
                sampling=sampling,
                has_baseline=has_baseline,
            )
            for number, prompt in enumerate(prompts, self._next_number)
        ]
        self._next_number += len(requests)
        self._requests |= {request.number: request for request in requests}
        reserves = [r.number for r in requests if r.number >= self._first_number + self._schedule.groups_per_step]
        self._in_reserve.update(reserves)
        if reserves:
            self._start(self._selection.add_reserves(range(reserves[0], reserves[-1] + 1)))
        if self._schedule.refill_rounds == 0:
            self._selection.end_refill()
        return requests

    def generated(self, rollout: Rollout) -> None:
        """Adds a finished rollout. Its reward call starts now, unless its group is a reserve."""
        number = int(rollout.group_id)
        self._rollouts.setdefault(number, {})[rollout.index] = rollout
        if number not in self._in_reserve:
            self._submit([rollout])

    def rollouts(self) -> list[Rollout]:
        """Returns all rollouts by group and index, so the order does not depend on which ended first."""
        return [group[index] for _, group in sorted(self._rollouts.items()) for index in sorted(group)]

    def trainable(self) -> list[Rollout]:
        """Returns the same without the baselines, which are never trained on."""
        return [rollout for rollout in self.rollouts() if not self.is_baseline(rollout)]

    def is_baseline(self, rollout: Rollout) -> bool:
        return self._requests[int(rollout.group_id)].is_baseline(rollout.index)

    @property
    def num_tokens(self) -> int:
        """The tokens of all rollouts that may be trained on, without reserves."""
        last = self._first_number + self._schedule.groups_per_step
        return sum(num_tokens(rollout) for rollout in self.trainable() if int(rollout.group_id) < last)

    def token_share(self, selections: Sequence[Selection]) -> float:
        """Returns the tokens generated for one mini-batch's selections, as a multiple of the step's mean mini-batch.

        Counts the requested groups, also those that dropped out, so that the shares of a step have a mean of 1 and do
        not depend on verdicts except through `order: completion`.
        """
        if self._schedule.mini_batches == 1:
            return 1.0
        own = sum(self._sampled_tokens_of(selection.requested) for selection in selections)
        return own * self._schedule.mini_batches / self._sampled_tokens() if own else 1.0

    def _sampled_tokens(self) -> int:
        """Returns the sampled tokens of the step's groups without reserves; counts them once when all are there."""
        if self._num_sampled_tokens is not None:
            return self._num_sampled_tokens
        last = self._first_number + self._schedule.groups_per_step
        count = sum(self._sampled_tokens_of(number) for number in range(self._first_number, last))
        if self.is_generated.is_set():
            self._num_sampled_tokens = count
        return count

    def _sampled_tokens_of(self, number: int) -> int:
        rollouts = self._rollouts.get(number, {}).values()
        return sum(num_sampled_tokens(rollout) for rollout in rollouts if not self.is_baseline(rollout))

    # -- saving ------------------------------------------------------------------------------------------------------

    def saved(self) -> SavedStep:
        """Returns the step as it is before its training begins."""
        rollouts = (PreparedRollout(rollout=one, precomputed=self.precomputed_of(one)) for one in self.rollouts())
        return SavedStep(step=self.step, requests=tuple(self._requests.values()), rollouts=tuple(rollouts))

    def restore(self, saved: SavedStep) -> None:
        """Continues a step that an earlier run generated. Submits its rollouts again; the journal has most verdicts."""
        first = saved.requests[0]
        prompts = [request.prompt for request in saved.requests]
        self.ask(prompts, first.group_size, first.sampling, has_baseline=first.has_baseline)
        for one in saved.rollouts:
            self.set_precomputed(one.rollout, one.precomputed)
            self.generated(one.rollout)

    # -- verdicts ----------------------------------------------------------------------------------------------------

    async def receive(self) -> None:
        """Settles the ticket's groups as they come, until the ticket ends."""
        try:
            async for group in self.ticket:
                self._settle(group)
        finally:
            if not self.ticket.is_over and self._agent.is_open:
                self.ticket.cancel()  # the loop is ending: no one needs the outstanding verdicts

    def _landed(self, rollouts: Sequence[Rollout], rewards: Sequence[Reward]) -> None:
        """Counts verdicts of a group that is not complete yet. The ticket calls this."""
        number = int(rollouts[0].group_id)
        self._count_out(number, -len(rollouts))
        failed = {rollout.index for rollout, reward in zip(rollouts, rewards, strict=True) if reward.value is None}
        if failed and not self._agent.may_change_verdicts:
            self._failed.setdefault(number, set()).update(failed)
            self._give_up_if_hopeless(number)

    def _give_up_if_hopeless(self, number: int) -> None:
        """Cancels a group's other calls once it must be dropped: too many rollouts failed, or its baseline did."""
        request, failed = self._requests[number], self._failed.get(number, set())
        most_scored = request.group_size - request.has_baseline - len(failed)
        if most_scored < self._schedule.min_group or any(map(request.is_baseline, failed)):
            asyncio.get_running_loop().call_soon(self._give_up, number)

    def _give_up(self, number: int) -> None:
        is_whole = len(self._rollouts[number]) == self._requests[number].group_size
        if is_whole and number not in self.scored and self._agent.is_open:
            self.ticket.cancel([str(number)])

    def _count_out(self, number: int, count: int) -> None:
        self._verdicts_out[number] += count
        self._usage.add_verdicts_out(count)

    def _settle(self, group: ScoredGroup) -> None:
        reason = self.reason_to_drop(group)
        number = int(group.group_id)
        self._count_out(number, -self._verdicts_out[number])  # the rest was cancelled before its calls began
        self.scored[number] = group
        if reason is not None:
            self.dropped[reason] += 1
        reserve = self._selection.settle(number, is_kept=reason is None)
        self._start([] if reserve is None else [reserve])
        self._changed.set()

    def give_up_stragglers(self) -> None:
        """Cancels the groups whose calls are running. They keep their scores; calls in the queue may begin."""
        self.ticket.cancel_started()

    def reason_to_drop(self, group: ScoredGroup) -> DropReason | None:
        values = [reward.value for reward in group.rewards if reward.value is not None]
        if self._requests[int(group.group_id)].has_baseline:
            baseline = self.baseline_of(group)
            if baseline.value is None and baseline.kind != "cancelled":  # its failure cancelled the others
                return "no_baseline"
            if len(values) - baseline.is_scored < self._schedule.min_group:
                return "too_few_verdicts"
            if baseline.value is None:
                return "no_baseline"
        elif len(values) < self._schedule.min_group:
            return "too_few_verdicts"
        if self._schedule.drop_equal_scores and min(values) == max(values):
            return "equal_scores"
        return None

    def baseline_of(self, group: ScoredGroup) -> Reward:
        """Returns the verdict on the greedy rollout; a cancelled one if the agent never judged it."""
        judged = zip(group.rollouts, group.rewards, strict=True)
        return next((reward for rollout, reward in judged if self.is_baseline(rollout)), _NOT_JUDGED)

    def _start(self, reserves: Iterable[int]) -> None:
        for number in reserves:
            self._in_reserve.discard(number)
            self._submit(list(self._rollouts.get(number, {}).values()))

    def _submit(self, rollouts: Sequence[Rollout]) -> None:
        if rollouts:
            self._count_out(int(rollouts[0].group_id), len(rollouts) * self._agent.num_rewards)
            self.ticket.submit(rollouts)
            if self._failed:
                self._give_up_if_hopeless(int(rollouts[0].group_id))

    # -- training ----------------------------------------------------------------------------------------------------

    @property
    def num_ready(self) -> int:
        return self._selection.num_ready

    @property
    def num_untaken(self) -> int:
        return self._selection.num_untaken

    @property
    def lacks_reserves(self) -> bool:
        """Whether dropped groups wait for more reserves than the step has."""
        return self._selection.num_unreplaced > 0

    async def wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def end_refill(self) -> None:
        self._selection.end_refill()

    def take(self, count: int) -> list[Selection]:
        return [self._selection.take() for _ in range(count)]

    def precomputed_of(self, rollout: Rollout) -> Precomputed:
        return self._precomputed.get((int(rollout.group_id), rollout.index), _NOTHING)

    def set_precomputed(self, rollout: Rollout, precomputed: Precomputed) -> None:
        self._precomputed[int(rollout.group_id), rollout.index] = precomputed

    def unused_prompts(self) -> list[Prompt]:
        return [self._requests[number].prompt for number in self._selection.unused_reserves()]

    @property
    def num_reserves_used(self) -> int:
        return len(self._requests) - self._schedule.groups_per_step - len(self._selection.unused_reserves())


_NOTHING = Precomputed()
_NOT_JUDGED = Reward(kind="cancelled")
