"""Averages the numbers that a reward returns beside its score, for verl's loggers.

Always true: every number that any verdict of a step has is averaged over the verdicts that have it; a name whose values
are no numbers is logged once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable

from rewardflow.adapters.verl.verl_verdict import number_of
from rewardflow.flow.reports import mean_of
from rewardflow.types import Reward

logger = logging.getLogger(__name__)


class OwnNumbers:
    """Remembers for which names it was said that they are no numbers."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def metrics(self, rewards: Iterable[Reward]) -> dict[str, float]:
        """Returns the means by name, under `rewardflow/reward/`."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for reward in rewards:
            for name, value in reward.extras.items():
                number = number_of(value)
                if number is not None:
                    values[name].append(number)
                elif name not in self._said:
                    self._said.add(name)
                    logger.warning("the reward's %r is no number, so verl's metrics do not have it", name)
        means = {name: mean_of(found) for name, found in values.items()}
        return {f"rewardflow/reward/{name}": mean for name, mean in means.items() if mean is not None}
