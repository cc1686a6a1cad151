"""Opens a run where its settings say: in this process, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.config.tree import RunSettings
from rewardflow.flow.validation import OnValidation
from rewardflow.runtime.cluster.on_ray import OnRay
from rewardflow.runtime.embedded import OwnProcess
from rewardflow.runtime.opening import Home, OnStep, OpenRun, opened


def open_run(
    settings: RunSettings,
    *,
    tell: Callable[[str], None] | None = None,
    on_step: OnStep | None = None,
    on_validation: OnValidation | None = None,
    probes: bool = True,
    resume: Checkpoint | bool = False,
) -> AbstractAsyncContextManager[OpenRun]:
    """As `opened`. `tell` is told what the start waits for, where that may take a while."""
    home: Home = OnRay(settings, tell=tell) if settings.runtime.kind == "ray" else OwnProcess(settings)
    return opened(settings, home, on_step=on_step, on_validation=on_validation, probes=probes, resume=resume)
