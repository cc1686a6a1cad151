"""Asks the job's agent about one sample of verl's, from whichever process of the job has the sample.

Always true: the judge sees prompt and response as text, without special tokens; the penalty for an overlong response is
added to the judge's score, and the judge's own score stays what validation goes by; a failed verdict is never a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rewardflow.adapters.verl.settings import settings_of
from rewardflow.adapters.verl.verl_rows import RowReader
from rewardflow.types import Reward, Rollout


class ScoringAgent(Protocol):
    """What a judge needs of the job's agent."""

    @property
    def needs_groups(self) -> bool: ...

    async def score(self, rollout: Rollout) -> Reward: ...


class SampleJudge:
    """`config` is verl's whole configuration as plain data; `tokenizer` is that of the policy."""

    def __init__(self, config: Mapping[str, Any], tokenizer: Any, agent: ScoringAgent) -> None:
        self._overlong = settings_of(config).overlong
        self._reader = RowReader(
            data_source_key=config["data"].get("reward_fn_key") or "data_source",
            group_size=config["actor_rollout_ref"]["rollout"]["n"],
        )
        self._tokenizer = tokenizer
        self._agent = agent

    @property
    def needs_groups(self) -> bool:
        """Whether the reward judges whole groups."""
        return self._agent.needs_groups

    async def rollout(
        self, fields: Mapping[str, Any], *, prompt_ids: Sequence[int], response_ids: Sequence[int]
    ) -> Rollout:
        """Makes a rollout of a sample: `fields` are what verl carries beside the tokens."""
        prompt, response = await asyncio.to_thread(self._texts, prompt_ids, response_ids)
        return replace(self._reader.rollout(fields, prompt=prompt, response=response), token_ids=response_ids)

    async def verdict(self, rollout: Rollout) -> Reward:
        return self._shaped(await self._agent.score(rollout), rollout)

    def _texts(self, *ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.decode(one, skip_special_tokens=True) for one in ids]

    def _shaped(self, reward: Reward, rollout: Rollout) -> Reward:
        """Adds the penalty for an overlong response."""
        if self._overlong is None or reward.value is None:
            return reward
        penalty = self._overlong.compute_score(rollout).value or 0.0
        extras = {"acc": reward.value, **reward.extras, "overlong_reward": penalty}
        return replace(reward, value=reward.value + penalty, extras=extras)
