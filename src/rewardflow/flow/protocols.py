"""The seams of the loop: what it asks of prompts, generator, reward agent, trainer and algorithm.

Always true: each has at least two implementations, one of them the fake that ships (`rewardflow.flow.fakes`); none of
them knows the schedule. A rollout's `token_ids` are prompt and response together; `response_mask` and `log_probs` have
the same length, with 0 where the token was not sampled by the policy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from rewardflow.flow.records import GroupRequest, MicroBatch, Prompt, TakenOf, UpdateReport
from rewardflow.observe.events import REWARD_SOURCE
from rewardflow.reward.ticket import Ticket
from rewardflow.types import Rollout, ScoredGroup


class PromptSource(Protocol):
    """Prompts for ever, epoch after epoch, in an order that the seed fixes."""

    def take(self, count: int) -> Sequence[Prompt]:
        """The next ones."""

    def give_back(self, prompts: Sequence[Prompt]) -> None:
        """Prompts that were taken and not used; they come next."""


class Generator(Protocol):
    """Makes rollouts with the weights that were published last."""

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Every rollout of every request, each as soon as it has ended, stamped with the version that made it."""

    async def publish(self, version: int) -> None:
        """From now on generate with the trainer's present weights, under this version."""


class CallCounts(Protocol):
    """Of the calls that were made for this run."""

    @property
    def calls(self) -> int: ...

    @property
    def retries(self) -> int: ...


class Rewards(Protocol):
    """Judges rollouts: the agent of this process, or one that several runs share."""

    @property
    def is_open(self) -> bool: ...

    @property
    def num_rewards(self) -> int:
        """How often a ticket's watcher is told of each rollout."""

    @property
    def may_change_verdicts(self) -> bool:
        """Whether a verdict that the watcher was told may be another when its group is complete."""

    def open(self, *, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        """A ticket to submit to while rollouts are generated, which queues with `due_step` if that is given."""

    def statistics(self) -> CallCounts: ...


class Trainer(Protocol):
    """Four verbs. Gradients accumulate over `forward_backward`; `optim_step` divides, clips, steps and clears them."""

    def step(self, number: int) -> AbstractAsyncContextManager[None]:
        """A step's lifetime: loads offloaded state on entry; offloads and advances the learning rate on exit."""

    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[object]:
        """One entry for each rollout, in order."""

    async def forward_backward(self, batch: MicroBatch) -> None:
        """Add the gradient of the batch's numerators, and its share of the denominator, to what has accumulated."""

    async def optim_step(self) -> UpdateReport: ...


class Critic(Protocol):
    """Expects rewards. It learns with the trainer it belongs to, in the same verbs."""

    async def values(self, rollouts: Sequence[Rollout]) -> Sequence[object]:
        """One entry for each rollout, in order."""


class Advantages(Protocol):
    """Gives each rollout of a group its advantage; a failed one gets 0 and has no say in the others'."""

    @property
    def needs(self) -> Literal["group", "mini_batch", "batch"]:
        """How many groups must be known before the first advantage is."""

    def __call__(self, groups: Sequence[ScoredGroup], taken_of: TakenOf) -> Sequence[Sequence[object]]:
        """For each group one advantage per rollout: a number, one for each sampled token of the response, or what else
        the trainer understands.

        `taken_of` gives what was taken of a rollout before, for those who put a KL term into the reward or compare
        with a critic's values.
        """
