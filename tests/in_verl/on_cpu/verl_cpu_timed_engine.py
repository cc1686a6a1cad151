"""Writes down when verl's FSDP engine computes. Loaded after verl_cpu_platform, which registers it for the CPU."""

from __future__ import annotations

from typing import Any

from verl_cpu_platform import FSDP  # registers what is wrapped here
from verl_cpu_spans import recorded

from rewardflow.adapters.verl.import_hooks import after_import


def timed(engine: type[Any]) -> type[Any]:
    class TimedEngine(engine):  # type: ignore[misc]
        def train_batch(self, *args: Any, **kwargs: Any) -> Any:
            with recorded("update"):
                return super().train_batch(*args, **kwargs)

        def infer_batch(self, *args: Any, **kwargs: Any) -> Any:
            with recorded("log_probs"):
                return super().infer_batch(*args, **kwargs)

    return TimedEngine


def time_engines() -> None:
    from verl.workers.engine.base import EngineRegistry

    for backend in ("fsdp", "fsdp2"):
        engines = EngineRegistry._engines["language_model"][backend]
        engines["cpu"] = timed(engines["cuda"])


after_import(FSDP, time_engines)
