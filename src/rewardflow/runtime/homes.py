"""Opens a run where its settings say: in this process, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Unpack

from rewardflow.runtime.local import OwnProcess
from rewardflow.runtime.on_ray.ray_home import OnRay
from rewardflow.runtime.open_run import Home, OpenOptions, OpenRun, opened
from rewardflow.settings.run_settings import RunSettings


def open_run(
    settings: RunSettings, *, tell: Callable[[str], None] | None = None, **options: Unpack[OpenOptions]
) -> AbstractAsyncContextManager[OpenRun]:
    """As `opened`. `tell` is told what the start waits for, where that may take a while."""
    home: Home = OnRay(settings, tell=tell) if settings.runtime.kind == "ray" else OwnProcess(settings)
    return opened(settings, home, **options)
