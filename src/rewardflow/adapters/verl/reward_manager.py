"""The reward manager `rewardflow`: sends every reward call of a verl run through the job's one agent.

Always true: a verdict is a number with the same keys beside it for every sample, or it is raised as `VerdictFailed`,
which verl counts as a failed rollout; no score ever replaces a failed verdict. Loaded by verl only, when it looks for
reward managers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rewardflow.adapters.verl.accounting.board_actor import board_of_samples
from rewardflow.adapters.verl.config_checks import check_manager, check_whole_groups
from rewardflow.adapters.verl.job_agent import JobAgent
from rewardflow.adapters.verl.settings import SECTION, settings_of
from rewardflow.adapters.verl.verl_rows import SESSION_FIELD, RowReader
from rewardflow.adapters.verl.verl_verdict import VerdictFailed, extra_info_of
from rewardflow.adapters.verl.versions import check_version, installed_version
from rewardflow.errors import AgentHalted
from rewardflow.types import Reward, Rollout


@register(SECTION)
class RewardflowManager(RewardManagerBase):
    """Scores the samples of one of verl's reward workers."""

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        plain: Any = OmegaConf.to_container(config, resolve=True)
        if reward_router_address is not None:
            check_manager(plain["reward"])
        self._settings = settings_of(plain)
        check_version(installed_version(), allow_untested=self._settings.allow_untested_verl)
        rollout = plain["actor_rollout_ref"]["rollout"]
        self._reader = RowReader(
            data_source_key=plain["data"].get("reward_fn_key") or "data_source", group_size=rollout["n"]
        )
        self._agent = JobAgent(self._settings)
        self._board = _find_board()
        if self._agent.needs_groups:
            check_whole_groups(plain)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Scores one sample for verl. Of several sequences, the last one counts."""
        row = data[-1:][0]
        fields = row.non_tensor_batch
        prompt, response, token_ids = await asyncio.to_thread(self._contents, row)
        rollout = self._reader.rollout(fields, prompt=prompt, response=response)
        reward = await self._judged(rollout, token_ids)
        if reward.value is None:
            raise VerdictFailed(reward)
        return {
            "reward_score": reward.value,
            "reward_extra_info": extra_info_of(reward, with_numbers=SESSION_FIELD in fields),
        }

    async def _judged(self, rollout: Rollout, token_ids: list[int]) -> Reward:
        """Returns the agent's verdict, and tells the board of it before verl has it."""
        if self._board is None:
            return self._shaped(await self._agent.score(rollout), rollout, token_ids)
        await self._board.asked.remote(rollout.group_id, rollout.index, rollout.step)
        try:
            reward = self._shaped(await self._agent.score(rollout), rollout, token_ids)
        except AgentHalted as error:
            await self._board.halt.remote(f"{type(error).__name__}: {error}")
            reward = Reward(kind="outage", error=str(error))
        await self._board.answered.remote(rollout.group_id, rollout.index, reward)
        return reward

    def _shaped(self, reward: Reward, rollout: Rollout, token_ids: list[int]) -> Reward:
        """Adds the penalty for an overlong response. The judge's own score stays what validation goes by."""
        if self._settings.overlong is None or reward.value is None:
            return reward
        penalty = self._settings.overlong.compute_score(replace(rollout, token_ids=token_ids)).value or 0.0
        extras = {"acc": reward.value, **reward.extras, "overlong_reward": penalty}
        return replace(reward, value=reward.value + penalty, extras=extras)

    def _contents(self, row: Any) -> tuple[str, str, list[int]]:
        """Decodes prompt and response, without padding and special tokens. Returns the response's tokens too."""
        prompt_ids, response_ids = row.batch["prompts"], row.batch["responses"]
        mask = row.batch["attention_mask"]
        length = int(mask[prompt_ids.shape[-1] :].sum())
        prompt_mask = mask[: prompt_ids.shape[-1]].bool()
        return (
            self.tokenizer.decode(prompt_ids[prompt_mask], skip_special_tokens=True),
            self.tokenizer.decode(response_ids[:length], skip_special_tokens=True),
            response_ids[:length].tolist(),
        )


def _find_board() -> Any:
    """Returns the board that the sampler made before any reward worker started; None without the sampler."""
    try:
        return ray.get_actor(board_of_samples())
    except ValueError:
        return None
