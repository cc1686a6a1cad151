"""Gives verdicts the cost that was paid for them, also in earlier sessions of the same command.

Always true: a verdict costs what all calls of this judge about its rollout have cost, those of failed verdicts too. The
agent gives a verdict from the journal at no cost, because it pays for none; figures about a judge need what it costs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rewardflow.cli.score.command import reward_of
from rewardflow.errors import JournalError
from rewardflow.reward.code.contract import LoadedReward, load_reward
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.component import as_parts
from rewardflow.reward.journal.reader import JournalReader
from rewardflow.types import Reward

logger = logging.getLogger(__name__)

Place = tuple[int, str, int]


def loaded_parts(judge: str) -> list[LoadedReward]:
    """Returns the rewards of a file or a name: several for a weighted sum."""
    reward, _ = reward_of(judge)
    return [load_reward(RewardSource.of(part.reward, part.reward_kwargs)) for part in as_parts(reward, {})]


def with_paid_costs(
    rewards: Mapping[Place, Reward], judge: str, *, journal: Path | None, run: str
) -> dict[Place, Reward]:
    """Returns the verdicts with their costs in the journal; as they are, if there is none that can be read."""
    if journal is None or not journal.exists():
        return dict(rewards)
    try:
        with JournalReader(journal) as reader:
            paid_usd = reader.paid_usd(run, [part.identity for part in loaded_parts(judge)])
    except JournalError as error:  # a full or broken disk must not cost the figures too
        logger.warning("the costs are those of this session alone: %s", error)
        return dict(rewards)
    return {
        place: replace(reward, cost_usd=max(reward.cost_usd, paid_usd.get(place, 0.0)))
        for place, reward in rewards.items()
    }
