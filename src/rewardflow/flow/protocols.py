"""Defines the protocols of the loop: what prompts, generator, reward agent, trainer and algorithm must do.

Always true: each protocol has at least two implementations, one of them a public fake (`rewardflow.flow.fakes`); no
implementation knows the schedule. A rollout's `token_ids` hold prompt and response together; `response_mask` and
`log_probs` have the same length, with 0 for every token that the policy did not sample.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from rewardflow.flow.records import GroupRequest, MicroBatch, PrecomputedOf, Prompt, UpdateReport
from rewardflow.observe.events import REWARD_SOURCE
from rewardflow.reward.ticket import Ticket
from rewardflow.types import Rollout, ScoredGroup


class PromptSource(Protocol):
    """An endless supply of prompts, epoch after epoch, in an order that the seed fixes."""

    def take(self, count: int) -> Sequence[Prompt]:
        """Returns the next `count` prompts."""

    def give_back(self, prompts: Sequence[Prompt]) -> None:
        """Returns unused prompts to the source, which gives them out next."""


class Generator(Protocol):
    """Generates rollouts with the weights that were published last."""

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Yields every rollout of every request as soon as it ends, stamped with the version that generated it."""

    async def publish(self, version: int) -> None:
        """Switches generation to the trainer's current weights and calls them `version`."""


class CallCounts(Protocol):
    """The numbers of reward calls and retries made for this run."""

    @property
    def calls(self) -> int: ...

    @property
    def retries(self) -> int: ...


class Rewards(Protocol):
    """Judges rollouts: the reward agent of this process, or a client of one that several runs share."""

    @property
    def is_open(self) -> bool: ...

    @property
    def num_rewards(self) -> int:
        """How often a ticket calls its watcher for each rollout."""

    @property
    def may_change_verdicts(self) -> bool:
        """Whether a verdict may still change between the watcher's call and the completion of its group."""

    def open(self, *, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        """Opens a ticket that accepts rollouts as they are generated; its calls queue like those of `due_step`."""

    def statistics(self) -> CallCounts: ...


class Trainer(Protocol):
    """Trains in four verbs. `forward_backward` adds gradients up; `optim_step` divides, clips, applies, clears them."""

    def step(self, number: int) -> AbstractAsyncContextManager[None]:
        """Spans one step: loads offloaded state on entry; offloads and advances the learning rate on exit."""

    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[object]:
        """Returns one entry for each rollout, in order."""

    async def forward_backward(self, batch: MicroBatch) -> None:
        """Adds the gradient of the batch's numerators, and its part of the denominator, to the accumulated ones."""

    async def optim_step(self, token_share: float = 1.0) -> UpdateReport:
        """Updates the weights by what was added up since the last update.

        `token_share`: how many tokens were generated for this mini-batch, as a multiple of the step's mean mini-batch.
        Divides a mean over tokens by that mean's size instead, so that a token weighs the same in every mini-batch.
        """


class ValueEstimator(Protocol):
    """Estimates rewards. Its trainer trains it along with the policy, in the same verbs."""

    async def values(self, rollouts: Sequence[Rollout]) -> Sequence[object]:
        """Returns one entry for each rollout, in order."""


class Advantages(Protocol):
    """Computes the advantage of each rollout of a group. A failed one gets 0 and does not affect the others."""

    @property
    def needs(self) -> Literal["group", "mini_batch", "batch"]:
        """How many groups must be scored before it can compute the first advantage."""

    def __call__(self, groups: Sequence[ScoredGroup], precomputed_of: PrecomputedOf) -> Sequence[Sequence[object]]:
        """Returns one advantage per rollout for each group.

        An advantage is a number, one number per sampled token of the response, or another form that the trainer
        understands. `precomputed_of` returns a rollout's log-probs and values, for algorithms that put a KL term into
        the reward or compare with a critic's values.
        """
