"""What is added to a step's report before anybody hears of it: memory, and warnings about its figures.

Always true: a warning is in the log and in the report, and through it in metrics.jsonl and on the display.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from rewardflow.config.tree import RunSettings
from rewardflow.flow.reports import StepReport
from rewardflow.runtime.health import HealthWatch
from rewardflow.runtime.peak_memory import peak_memory_bytes

logger = logging.getLogger(__name__)


class StepChecks:
    """`checks(report)` gives the report as it is told."""

    def __init__(self, settings: RunSettings, device: Any) -> None:
        self._watch = HealthWatch(settings)
        self._device = device

    def __call__(self, report: StepReport) -> StepReport:
        warnings = self._watch.warnings(report)
        for warning in warnings:
            logger.warning("%s", warning)
        return replace(report, memory_peak_bytes=peak_memory_bytes(self._device), warnings=tuple(warnings))
