"""Holds the parts of a flow (prompts, generator, agent, trainer, algorithm) and the devices that they share.

Always true: parts that exist fit each other; nothing changes them during a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewardflow.errors import InvalidInput
from rewardflow.flow.device import Device
from rewardflow.flow.protocols import Advantages, Generator, PromptSource, Rewards, Trainer, ValueEstimator
from rewardflow.flow.records import Sampling
from rewardflow.flow.schedule import OldLogProbs, Schedule
from rewardflow.flow.validation.validation_plan import ValidationPlan
from rewardflow.observe.events import EventSink

_HOW_MUCH = {"group": 0, "micro_batch": 0, "mini_batch": 1, "batch": 2}  # orders `needs` and `stream` by size


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowParts:
    """The parts of a flow and how it uses them.

    `takes_reference`, `takes_behaviour` and `old_log_probs` say which log-probs the trainer computes before training.
    With a `critic`, the flow computes values along with the old log-probs. `has_baseline` adds one rollout to each
    group, which is decoded greedily and never trained on. `mask_truncated` leaves out responses that were cut off.
    """

    schedule: Schedule
    prompts: PromptSource
    generator: Generator
    agent: Rewards
    trainer: Trainer
    advantages: Advantages
    group_size: int
    sampling: Sampling = field(default_factory=Sampling)  # of the rollouts that are trained
    micro_batch_tokens: int = 16384
    takes_reference: bool = False
    takes_behaviour: bool = False
    old_log_probs: OldLogProbs = "with_several_updates"
    critic: ValueEstimator | None = None
    has_baseline: bool = False
    mask_truncated: bool = False
    validation: ValidationPlan | None = None

    def __post_init__(self) -> None:
        if _HOW_MUCH[self.advantages.needs] > _HOW_MUCH[self.schedule.stream]:
            raise InvalidInput(
                f"these advantages need a whole {self.advantages.needs} before the first one, which stream="
                f"{self.schedule.stream} does not wait for; choose stream={self.advantages.needs}"
            )
        if self.schedule.min_group > self.group_size:
            raise InvalidInput(
                "min_group must not exceed group_size, or every group is dropped, "
                f"got min_group={self.schedule.min_group}, group_size={self.group_size}"
            )
        if self.takes_behaviour and self.schedule.placement == "separate":
            raise InvalidInput(
                "the trainer can compute behaviour log-probs only while it has the weights that generated, which "
                "placement=separate does not promise; use the engine's, or choose placement=colocated"
            )

    @property
    def rollouts_per_group(self) -> int:
        return self.group_size + self.has_baseline

    @property
    def takes_old(self) -> bool:
        if self.old_log_probs == "with_several_updates":
            return self.schedule.has_several_updates
        return self.old_log_probs == "always"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of training and generation: one that they share, or one each."""

    trainer: Device
    generator: Device

    @classmethod
    def of(cls, schedule: Schedule, sink: EventSink | None) -> Devices:
        trainer = Device("trainer", sink=sink)
        if schedule.placement == "colocated":
            return cls(trainer, trainer)
        return cls(trainer, Device("generator", sink=sink))

    @property
    def are_one(self) -> bool:
        return self.trainer is self.generator
