"""The reward manager `rewardflow`: sends every reward call of a verl run through the job's one agent.

Always true: a verdict is a number with the same keys beside it for every sample, or it is raised as `VerdictFailed`,
which verl counts as a failed rollout; no score ever replaces a failed verdict. Loaded by verl only, when it looks for
reward managers.
"""

from __future__ import annotations

from typing import Any

import ray
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rewardflow.adapters.verl.accounting.board_actor import board_of_samples
from rewardflow.adapters.verl.config_checks import check_manager, check_whole_groups
from rewardflow.adapters.verl.job_agent import judge_for_job
from rewardflow.adapters.verl.settings import SECTION
from rewardflow.adapters.verl.verl_rows import SESSION_FIELD
from rewardflow.adapters.verl.verl_verdict import VerdictFailed, extra_info_of
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
        self._judge = judge_for_job(plain, tokenizer)
        self._board = _find_board()
        if self._judge.needs_groups:
            check_whole_groups(plain)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Scores one sample for verl. Of several sequences, the last one counts."""
        row = data[-1:][0]
        fields = row.non_tensor_batch
        prompt_ids, response_ids = _without_padding(row.batch)
        reward = await self._judged(await self._judge.rollout(fields, prompt_ids=prompt_ids, response_ids=response_ids))
        if reward.value is None:
            raise VerdictFailed(reward)
        return {
            "reward_score": reward.value,
            "reward_extra_info": extra_info_of(reward, with_numbers=SESSION_FIELD in fields),
        }

    async def _judged(self, rollout: Rollout) -> Reward:
        """Returns the agent's verdict, and tells the board of it before verl has it."""
        if self._board is None:
            return await self._judge.verdict(rollout)
        await self._board.asked.remote(rollout.group_id, rollout.index, rollout.step)
        try:
            reward = await self._judge.verdict(rollout)
        except AgentHalted as error:
            await self._board.halt.remote(f"{type(error).__name__}: {error}")
            reward = Reward(kind="outage", error=str(error))
        await self._board.answered.remote(rollout.group_id, rollout.index, reward)
        return reward


def _without_padding(batch: Any) -> tuple[list[int], list[int]]:
    """Returns the tokens of prompt and response. verl pads a prompt on its left and a response on its right."""
    prompt_ids, response_ids, mask = batch["prompts"], batch["responses"], batch["attention_mask"]
    width = prompt_ids.shape[-1]
    return prompt_ids[mask[:width].bool()].tolist(), response_ids[: int(mask[width:].sum())].tolist()


def _find_board() -> Any:
    """Returns the board that the sampler made before any reward worker started; None without the sampler."""
    try:
        return ray.get_actor(board_of_samples())
    except ValueError:
        return None
