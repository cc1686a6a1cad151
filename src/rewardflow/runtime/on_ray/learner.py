"""A trainer as one rank of several holds it, whatever spreads the model over them.

Always true: all ranks make the same calls in the same order; those of one replica with the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Critic, Trainer
from rewardflow.runtime.local import device_of, make_trainer
from rewardflow.runtime.on_ray.megatron_learner import MegatronLearner, StartingWeights
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

    from rewardflow.checkpoint.snapshot import TakenWeights
    from rewardflow.policy.load_policy import Policy


class Learner(Protocol):
    """What differs between backends: `Fsdp2Learner` and `MegatronLearner`."""

    @property
    def trainer(self) -> Trainer: ...

    @property
    def critic(self) -> Critic | None: ...

    @property
    def replica(self) -> int:
        """Which share of a micro-batch's samples this rank is given."""

    @property
    def num_replicas(self) -> int: ...

    @property
    def speaks(self) -> bool:
        """Whether this is the one rank of its replica that tells what was found for the samples."""

    @property
    def hands_on(self) -> bool:
        """Whether this rank gives what `weights_to_hand_on` yields to engines elsewhere; others only help gather it."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each by its name in transformers and in one piece, the same on every rank; one at a time, on the thread."""

    def weights_to_hand_on(self) -> Iterator[tuple[str, Tensor]]:
        """Likewise, but each on the ranks that gather it alone; over all ranks that hand on, each weight once."""

    async def take(self) -> TakenWeights:
        """This rank's part of a checkpoint."""

    async def put_back(self, folder: Path) -> None:
        """From a checkpoint that any number of ranks wrote."""


class Fsdp2Learner:
    """Every rank is a replica: each has samples of its own, and a part of every weight."""

    def __init__(
        self, settings: RunSettings, policy: Policy, thread: DeviceThread, group: dist.ProcessGroup | None
    ) -> None:
        self.trainer = make_trainer(settings, policy, thread, group=group)
        self.critic = self.trainer if settings.algorithm.kind.critic else None
        self.replica = 0 if group is None else group.rank()
        self.num_replicas = 1 if group is None else group.size()
        self.speaks = True
        self.hands_on = self.replica == 0
        self._thread = thread
        self._group = group
        self._device = policy.model.device

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        from rewardflow.train.fsdp2.sharding import whole

        self._settle()
        model = self.trainer.model
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            yield name, whole(weight.detach().to(self._device))  # collectives are done where the ranks compute

    def weights_to_hand_on(self) -> Iterator[tuple[str, Tensor]]:
        return self.weights()

    async def take(self) -> TakenWeights:
        return await self._thread.run(self._take)

    def _take(self) -> TakenWeights:
        from rewardflow.checkpoint.snapshot import take_weights

        self._settle()
        trainer = self.trainer
        return take_weights(model=trainer.model, optimizer=trainer.optimizer, critic=trainer.critic)

    async def put_back(self, folder: Path) -> None:
        await self._thread.run(lambda: self._put_back(folder))

    def _put_back(self, folder: Path) -> None:
        from rewardflow.checkpoint.snapshot import put_back_weights

        self._settle()
        trainer = self.trainer
        put_back_weights(
            folder, model=trainer.model, optimizer=trainer.optimizer, critic=trainer.critic, group=self._group
        )
        trainer.rest()

    def _settle(self) -> None:
        from rewardflow.train.fsdp2.sharding import settle

        settle(self.trainer.model)
        if self.trainer.critic is not None:
            settle(self.trainer.critic.model)


def make_learner(
    settings: RunSettings, policy: Policy | None, thread: DeviceThread, group: dist.ProcessGroup | None
) -> Learner:
    """As `trainer.backend` says. `group` is of all ranks; None where there is one, which FSDP2 alone can do without.

    `policy` may be None if the backend does not train the policy itself, and nobody generates with it here.
    """
    if settings.trainer.backend == "megatron":
        starting = (
            StartingWeights.read(settings.policy, seed=settings.seed) if policy is None else StartingWeights.of(policy)
        )
        return MegatronLearner(settings, starting, thread, device_of(settings))
    assert policy is not None
    return Fsdp2Learner(settings, policy, thread, group)
