"""The learning rate of a step, as a share of the one in the settings.

Always true: it is a function of the step's number, so neither the number of mini-batches nor a resumed run changes it;
no step has a rate of 0, unless `min_lr_share` reaches it after the last step.
"""

from __future__ import annotations

import math

from rewardflow.settings.run_settings import OptimizerSettings


def share(step: int, total_steps: int, settings: OptimizerSettings) -> float:
    """Returns the share for a step, counted from 0: it rises over `warmup_steps`, then stays or falls to
    `min_lr_share`.
    """
    if step < settings.warmup_steps:
        return (step + 1) / (settings.warmup_steps + 1)
    progress = min(1.0, (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps))
    match settings.lr_schedule:
        case "constant":
            remaining = 1.0
        case "linear":
            remaining = 1.0 - progress
        case "cosine":
            remaining = 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.min_lr_share + (1.0 - settings.min_lr_share) * remaining
