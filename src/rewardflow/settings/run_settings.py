"""Defines every setting of a training run: its name, its default and its rule.

Always true: a record obeys the rules of its section in `sections/`; `cross_checks.py` checks rules across sections when
a `RunSettings` is made. Nothing here imports torch, so a mistake is reported before anything heavy is loaded. The
comment beside a field is its explanation in the JSON schema and in docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from rewardflow.flow.schedule import Schedule
from rewardflow.flow.validation.validation_plan import VALIDATION_SOURCE
from rewardflow.reward.settings import split_options
from rewardflow.settings.cross_checks import check_across_sections
from rewardflow.settings.reward_shape import check_reward
from rewardflow.settings.rules import at_least, check_seed
from rewardflow.settings.sections.algorithm import (
    AboveCap,
    AdvantageName,
    Aggregation,
    AlgorithmSettings,
    KlEstimator,
    LossKlEstimator,
    RejectBy,
    WeighBy,
)
from rewardflow.settings.sections.audit import AuditSettings
from rewardflow.settings.sections.data import DataSettings
from rewardflow.settings.sections.generation import (
    ENGINES,
    ChatSettings,
    GenerationSettings,
    VllmSettings,
    WeightTransfer,
)
from rewardflow.settings.sections.outputs import CheckpointSettings, FailureSettings, MetricsSettings, RolloutSettings
from rewardflow.settings.sections.policy import Dtype, LoraSettings, PolicySettings
from rewardflow.settings.sections.runtime import RuntimeSettings, SharedAgentSettings
from rewardflow.settings.sections.training import CriticSettings, MegatronSettings, OptimizerSettings, TrainerSettings
from rewardflow.settings.sections.validation import ValidationSettings
from rewardflow.settings.typed_values import at

__all__ = [
    "AboveCap",
    "AdvantageName",
    "Aggregation",
    "AlgorithmSettings",
    "AuditSettings",
    "ChatSettings",
    "CheckpointSettings",
    "CriticSettings",
    "DataSettings",
    "Dtype",
    "FailureSettings",
    "GenerationSettings",
    "KlEstimator",
    "LoraSettings",
    "LossKlEstimator",
    "MegatronSettings",
    "MetricsSettings",
    "OptimizerSettings",
    "PolicySettings",
    "RejectBy",
    "RolloutSettings",
    "RunSettings",
    "RuntimeSettings",
    "SharedAgentSettings",
    "TrainerSettings",
    "ValidationSettings",
    "VllmSettings",
    "WeighBy",
    "WeightTransfer",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A whole run: its reward, its length, and where its files go."""

    # `file.py:name`, `package.module:name`, a YAML reward file, or its contents in place;
    # in a run file also a kind of reward such as `gsm8k`
    reward: str | Mapping[str, Any]
    data: DataSettings
    schedule: Schedule
    steps: int  # how many steps to train; each ends with new weights
    run_dir: str | PathLike[str] | None = None  # the folder for all files of the run; null: no files
    seed: int = 0  # seed of the order of prompts, of sampling and of new weights
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)  # settings of a reward given by name
    # the folder where relative paths inside a reward's contents start; default in a run file: the file's folder
    reward_folder: str | PathLike[str] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)  # settings of the reward agent: settings.md
    policy: PolicySettings = field(default_factory=PolicySettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    failures: FailureSettings = field(default_factory=FailureSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    rollouts: RolloutSettings = field(default_factory=RolloutSettings)
    validation: ValidationSettings | None = None
    audit: AuditSettings | None = None
    vllm: VllmSettings = field(default_factory=VllmSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    shared_agent: SharedAgentSettings = field(default_factory=SharedAgentSettings)

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        check_seed(self.seed)
        check_reward(self.reward, self.reward_kwargs)
        with at("limits"):
            split_options(self.limits)
        check_across_sections(self)

    @property
    def is_best_by_validation(self) -> bool:
        """Whether the best checkpoint is known only after a validation has its verdicts."""
        return str(self.checkpoint.keep_best_by).startswith(f"{VALIDATION_SOURCE}/")

    @property
    def engine_dtype(self) -> Dtype:
        """The dtype of the engine's weights, in which they are published."""
        if ENGINES[self.generation.engine].computes_as_trainer:
            return self.policy.dtype  # it runs a model like the trainer's, which casts as it computes
        return self.trainer.autocast or self.policy.dtype

    @property
    def rollouts_per_group(self) -> int:
        """The rollouts to train on, plus the greedy one that they are compared with if the advantage needs it."""
        return self.generation.group_size + self.algorithm.kind.greedy
