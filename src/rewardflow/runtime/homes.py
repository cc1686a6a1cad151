"""Opens a run where its settings say: in this process, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Unpack

from rewardflow.config.tree import RunSettings
from rewardflow.runtime.cluster.on_ray import OnRay
from rewardflow.runtime.embedded import OwnProcess
from rewardflow.runtime.opening import Home, OpenOptions, OpenRun, opened


def open_run(
    settings: RunSettings, *, tell: Callable[[str], None] | None = None, **options: Unpack[OpenOptions]
) -> AbstractAsyncContextManager[OpenRun]:
    """As `opened`. `tell` is told what the start waits for, where that may take a while."""
    home: Home = OnRay(settings, tell=tell) if settings.runtime.kind == "ray" else OwnProcess(settings)
    return opened(settings, home, **options)
