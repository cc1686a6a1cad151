"""Adds memory, KL in the reward and warnings to a step's report, before anybody reads it.

Always true: a warning is in the log and in the report, and through it in metrics.jsonl and on the display.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from rewardflow.flow.protocols import Advantages
from rewardflow.flow.reports import StepReport
from rewardflow.runtime.records.training_warnings import HealthWatch
from rewardflow.settings.run_settings import RunSettings

logger = logging.getLogger(__name__)


class StepChecks:
    """Call `checks(report)` to get the complete report."""

    def __init__(
        self, settings: RunSettings, advantages: Advantages, peak_memory_bytes: Callable[[], int | None]
    ) -> None:
        self._watch = HealthWatch(settings)
        self._advantages = advantages
        self._peak_memory_bytes = peak_memory_bytes

    def __call__(self, report: StepReport) -> StepReport:
        from rewardflow.algo.reward_kl import KlInReward

        warnings = self._watch.warnings(report)
        for warning in warnings:
            logger.warning("%s", warning)
        report = replace(report, memory_peak_bytes=self._peak_memory_bytes(), warnings=tuple(warnings))
        if not isinstance(self._advantages, KlInReward):
            return report
        paid = self._advantages.take_paid()
        return replace(report, reward_kl_mean=paid.mean, reward_kl_coef=paid.coef)
