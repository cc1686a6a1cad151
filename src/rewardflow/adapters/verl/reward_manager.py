"""The reward manager `rewardflow`: every reward call of a verl run under the job's one agent.

Always true: a verdict is a number with the same keys beside it for every sample, or `VerdictFailed`, which verl counts
as a failed rollout; nothing is ever scored in its place. Loaded by verl only, when it looks for reward managers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_manager import register as register_manager
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rewardflow.adapters.verl.job_agent import JobAgent, tally_name
from rewardflow.adapters.verl.launch.unread_settings import refuse_what_goes_round_the_manager
from rewardflow.adapters.verl.sample_rollout import RowReader
from rewardflow.adapters.verl.settings import SECTION, settings_of
from rewardflow.adapters.verl.verl_verdict import VerdictFailed, extra_info_of
from rewardflow.errors import AgentHalted, InvalidInput
from rewardflow.types import Reward, Rollout


class RewardflowManager(RewardManagerBase):
    """One in each of verl's reward workers."""

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
            refuse_what_goes_round_the_manager(plain["reward"])
        self._settings = settings_of(plain)
        rollout = plain["actor_rollout_ref"]["rollout"]
        self._reader = RowReader(
            data_source_key=plain["data"].get("reward_fn_key") or "data_source", group_size=rollout["n"]
        )
        self._agent = JobAgent(self._settings)
        self._tally = _find_tally()
        if self._agent.needs_groups:
            _check_validation(plain)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """verl's way in: one sample, of several sequences the last."""
        row = data[-1:][0]
        prompt, response = await asyncio.to_thread(self._texts, row)
        reward = await self._judged(self._reader.rollout(row.non_tensor_batch, prompt=prompt, response=response))
        if reward.value is None:
            raise VerdictFailed(reward)
        return {
            "reward_score": reward.value,
            "reward_extra_info": extra_info_of(reward, self._settings.extra_keys),
        }

    async def _judged(self, rollout: Rollout) -> Reward:
        """The agent's verdict, told to whoever counts them before verl has it."""
        if self._tally is None:
            return await self._agent.score(rollout)
        whose = rollout.group_id, rollout.index
        await self._tally.asked.remote(*whose, rollout.step)
        try:
            reward = await self._agent.score(rollout)
        except AgentHalted as error:
            await self._tally.halt.remote(f"{type(error).__name__}: {error}")
            reward = Reward(kind="outage", error=str(error))
        await self._tally.answered.remote(*whose, reward)
        return reward

    def _texts(self, row: Any) -> tuple[str, str]:
        """Prompt and response without padding and special tokens."""
        prompt_ids, response_ids = row.batch["prompts"], row.batch["responses"]
        mask = row.batch["attention_mask"]
        length = int(mask[prompt_ids.shape[-1] :].sum())
        prompt_mask = mask[: prompt_ids.shape[-1]].bool()
        return (
            self.tokenizer.decode(prompt_ids[prompt_mask], skip_special_tokens=True),
            self.tokenizer.decode(response_ids[:length], skip_special_tokens=True),
        )


def _find_tally() -> Any:
    """Made by the sampler, before there is any reward worker; without the sampler there is none."""
    try:
        return ray.get_actor(tally_name())
    except ValueError:
        return None


def _check_validation(config: Any) -> None:
    """verl does not say which samples are for validation, and a reward of groups must know their size."""
    trainer, rollout = config["trainer"], config["actor_rollout_ref"]["rollout"]
    validates = trainer["val_before_train"] or trainer["test_freq"] > 0
    is_ours = trainer["v1"]["trainer_mode"] == SECTION
    if validates and not is_ours and rollout["val_kwargs"]["n"] != rollout["n"]:
        raise InvalidInput(
            "a reward that judges whole groups needs groups of one size in verl's own modes: "
            "actor_rollout_ref.rollout.val_kwargs.n must equal actor_rollout_ref.rollout.n, got "
            f"{rollout['val_kwargs']['n']} and {rollout['n']}"
        )


def register(name: str) -> None:
    register_manager(name)(RewardflowManager)
