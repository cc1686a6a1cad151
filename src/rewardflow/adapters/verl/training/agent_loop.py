"""verl's agent loop for trainer mode `rewardflow`: what is generated is there at once, its score when it comes.

Always true: a trajectory is in TransferQueue before its verdict is asked for, with NaN where its score will be, so that
log-probs can be taken meanwhile; the scores of a group are stored together, before verl calls it finished; NaN is left
where there is no verdict, and no number is put there; every group is reported once, whatever happens to its rollouts.
Loaded by verl only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rewardflow.adapters.verl.sample_rollout import GROUP_SIZE_FIELD
from rewardflow.adapters.verl.training.group_board import BOARD_KEY, NEEDS_GROUPS_KEY, GroupJudged, GroupReport
from rewardflow.adapters.verl.training.open_group import GroupIncomplete, GroupUnderWay
from rewardflow.adapters.verl.verl_verdict import VerdictFailed, reward_of
from rewardflow.errors import AgentHalted
from rewardflow.types import Reward

logger = logging.getLogger(__name__)


class _ReportingWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # verl made an actor of it
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._board = ray.get_actor(config[BOARD_KEY])
        self._needs_groups = bool(config[NEEDS_GROUPS_KEY])
        self._groups: dict[str, GroupUnderWay] = {}

    async def live(self) -> None:
        """Never returns: whoever asked is told when this process is gone, and with it the groups that it has."""
        await asyncio.Event().wait()

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: bool = False
    ) -> None:
        uid, rollout = prompt["uid"], self.config.actor_rollout_ref.rollout
        validates = bool(trajectory["validate"])
        size = int(prompt.get("__rollout_n__", rollout.val_kwargs.n if validates else rollout.n))
        group = self._groups[uid] = GroupUnderWay(size, validates, self._needs_groups)
        prompt[GROUP_SIZE_FIELD] = size
        try:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        except Exception as error:  # verl catches those of rollouts, and TransferQueue may fail besides
            logger.exception("prompt %s was given up", uid)
            group.error = _reason(error)
        del self._groups[uid]
        if validates:
            await self._board.validated.remote()
            return
        report = GroupReport(
            uid=uid,
            step=int(prompt["global_steps"]),
            size=size,
            verdicts=tuple(group.verdicts),
            error=group.error,
            first_generated_s=group.first_generated_s,
            judged_s=time.time(),
        )
        await self._board.judged.remote(report)

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        group = self._groups[kwargs["uid"]]
        try:
            return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)
        except Exception as error:
            group.error = _reason(error)
            raise
        finally:
            session = int(kwargs["session_id"])
            group.ended(session)
            await self._generation_ended(kwargs["uid"], session, group)
            if group.is_over and group.scores:
                await self._store(group)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        """verl's own, which stores the trajectory; then the verdict, whose score waits for the group's others."""
        outputs = output if isinstance(output, list) else [output]
        if validate or not outputs or outputs[-1].reward_score is not None:
            await super()._agent_loop_postprocess(output, validate, **kwargs)
            return
        uid, session, final = kwargs["uid"], int(kwargs["session_id"]), outputs[-1]
        group = self._groups[uid]
        final.reward_score = math.nan  # holds the place; verl asks for a verdict only where there is no score
        final.extra_fields["reward_extra_info"] = {}
        await super()._agent_loop_postprocess(outputs, validate, **kwargs)
        if group.first_generated_s is None:
            group.first_generated_s = time.time()
            await self._board.verdict_out.remote(uid)
        await self._generation_ended(uid, session, group)
        final.reward_score = None
        asked_s = time.time()
        reward = await self._verdict(outputs, kwargs)
        group.verdicts.append(GroupJudged(index=session, reward=reward, asked_s=asked_s))
        if reward.value is not None:
            group.scores.update(_scores(outputs, uid, session))

    async def _generation_ended(self, uid: str, session: int, group: GroupUnderWay) -> None:
        """Told of a rollout when its trajectory is stored, and again when it is over, which may be the first time."""
        if group.generated(session) and not group.validates:
            await self._board.generated.remote(uid)

    async def _store(self, group: GroupUnderWay) -> None:
        """The scores of all rollouts at once: one call of TransferQueue instead of many."""
        try:
            await tq.async_kv_batch_put(
                keys=list(group.scores),
                fields=list_of_dict_to_tensordict(list(group.scores.values())),
                partition_id="train",
            )
        except Exception as error:
            group.error = _reason(error)
            raise

    async def _compute_score(self, outputs: Any, kwargs: dict[str, Any]) -> None:
        """verl's own, which asks the reward manager where there is no score yet; for training and for validation."""
        if outputs[-1].reward_score is not None:
            return
        try:
            async with self._groups[kwargs["uid"]].asking(int(kwargs["session_id"])):
                await super()._compute_score(outputs, kwargs=kwargs)
        except AgentHalted as error:
            await self._board.halt.remote(_reason(error))
            raise

    async def _verdict(self, outputs: Any, kwargs: dict[str, Any]) -> Reward:
        """What the reward manager says, in another process: whatever goes wrong there is a failure, and ends here."""
        try:
            await self._compute_score(outputs, kwargs=kwargs)
        except GroupIncomplete as error:
            return Reward(kind="cancelled", error=str(error))
        except VerdictFailed as error:
            failed: Reward = error.reward
            return failed
        except AgentHalted as error:
            return Reward(kind="outage", error=_reason(error))
        except Exception as error:
            return Reward(kind="service", error=f"the reward worker failed: {_reason(error)}")
        final = outputs[-1]
        return reward_of(final.reward_score, final.extra_fields["reward_extra_info"])


def _scores(outputs: Any, uid: str, session: int) -> dict[str, dict[str, Any]]:
    """By row, where verl would have put them: on the last token of each response."""
    final = outputs[-1]
    for output in outputs[:-1]:
        output.reward_score = final.reward_score
        output.extra_fields["reward_extra_info"] = final.extra_fields["reward_extra_info"]
    rows = {f"{uid}_{session}_{place}": output.as_dict() for place, output in enumerate(outputs)}
    return {key: {"rm_scores": row["rm_scores"], "extra_fields": row["extra_fields"]} for key, row in rows.items()}


def _reason(error: Exception) -> str:
    """What was raised, also where it was raised in another process: Ray makes a page of it."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}"


class RewardflowAgentLoopManager(AgentLoopManagerTQ):
    """verl's, with workers that report."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(_ReportingWorker)

    def lifelines(self) -> list[Any]:
        """One for each worker: an answer that never comes while it lives."""
        return [worker.live.remote() for worker in self.agent_loop_workers]
