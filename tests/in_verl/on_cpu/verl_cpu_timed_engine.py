"""Writes down when verl's FSDP engine computes. Loaded after verl_cpu_platform, which registers it for the CPU."""

from __future__ import annotations

from typing import Any

import verl_cpu_platform  # noqa: F401  # registers what is wrapped here
from verl.workers.engine.base import EngineRegistry
from verl_cpu_spans import recorded


def timed(engine: type[Any]) -> type[Any]:
    class TimedEngine(engine):  # type: ignore[misc]
        def train_batch(self, *args: Any, **kwargs: Any) -> Any:
            with recorded("update"):
                return super().train_batch(*args, **kwargs)

        def infer_batch(self, *args: Any, **kwargs: Any) -> Any:
            with recorded("log_probs"):
                return super().infer_batch(*args, **kwargs)

    return TimedEngine


for backend in ("fsdp", "fsdp2"):
    engines = EngineRegistry._engines["language_model"][backend]
    engines["cpu"] = timed(engines["cuda"])
