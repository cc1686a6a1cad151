"""verl's agent loop for trainer mode `rewardflow`: what is generated is there at once, its score when it comes.

Always true: a trajectory is in TransferQueue before its verdict is asked for, with NaN where its score will be, so that
log-probs can be taken meanwhile; NaN is left where there is no verdict, and no number is put there; every group is
reported once, whatever happens to its rollouts. Loaded by verl only.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rewardflow.adapters.verl.progress import BOARD_KEY, GroupReport, Judged
from rewardflow.adapters.verl.rows import GROUP_SIZE_FIELD
from rewardflow.adapters.verl.verdicts import VerdictFailed, reward_of
from rewardflow.errors import AgentHalted
from rewardflow.types import Reward


@dataclass(slots=True)
class _Group:
    """A group under way in this worker, which has all of its rollouts."""

    size: int
    ended: int = 0  # rollouts whose generation is over, for better or worse
    first_generated_s: float | None = None
    verdicts: list[Judged] = field(default_factory=list)
    error: str | None = None


class _ReportingWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # verl made an actor of it
    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._board = ray.get_actor(config[BOARD_KEY])
        self._groups: dict[str, _Group] = {}

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: bool = False
    ) -> None:
        uid, rollout = prompt["uid"], self.config.actor_rollout_ref.rollout
        default_size = rollout.val_kwargs.n if trajectory["validate"] else rollout.n
        size = int(prompt.get("__rollout_n__", default_size))
        group = self._groups[uid] = _Group(size)
        prompt[GROUP_SIZE_FIELD] = size
        await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        del self._groups[uid]
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
        ended = group.ended
        try:
            return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)
        except Exception as error:
            group.error = f"{type(error).__name__}: {error}"
            if group.ended == ended:
                await self._generation_ended(kwargs["uid"], group)
            raise

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        """verl's own, which stores the trajectory, and then the score."""
        outputs = output if isinstance(output, list) else [output]
        if validate or not outputs or outputs[-1].reward_score is not None:
            await super()._agent_loop_postprocess(output, validate, **kwargs)
            return
        uid, final = kwargs["uid"], outputs[-1]
        group = self._groups[uid]
        final.reward_score = math.nan  # holds the place; verl asks for a verdict only where there is no score
        final.extra_fields["reward_extra_info"] = {}
        await super()._agent_loop_postprocess(outputs, validate, **kwargs)
        if group.first_generated_s is None:
            group.first_generated_s = time.time()
            await self._board.verdict_out.remote(uid)
        await self._generation_ended(uid, group)
        final.reward_score = None
        reward = await self._verdict(outputs, kwargs)
        group.verdicts.append(Judged(index=int(kwargs["session_id"]), reward=reward))
        if reward.value is not None:
            await self._store_scores(outputs, uid, kwargs["session_id"])

    async def _generation_ended(self, uid: str, group: _Group) -> None:
        group.ended += 1
        if group.ended == group.size:
            await self._board.generated.remote(uid)

    async def _verdict(self, outputs: Any, kwargs: dict[str, Any]) -> Reward:
        """What the reward manager says, in another process: whatever goes wrong there is a failure, and ends here."""
        try:
            await self._compute_score(outputs, kwargs=kwargs)
        except VerdictFailed as error:
            failed: Reward = error.reward
            return failed
        except AgentHalted as error:
            await self._board.halt.remote(f"{type(error).__name__}: {error}")
            return Reward(kind="outage", error=str(error))
        except Exception as error:
            return Reward(kind="service", error=f"the reward worker failed: {type(error).__name__}: {error}")
        final = outputs[-1]
        return reward_of(final.reward_score, final.extra_fields["reward_extra_info"])

    async def _store_scores(self, outputs: Any, uid: str, session_id: int) -> None:
        """Where verl would have put them: on the last token of each response."""
        final = outputs[-1]
        for output in outputs[:-1]:
            output.reward_score = final.reward_score
            output.extra_fields["reward_extra_info"] = final.extra_fields["reward_extra_info"]
        rows = [output.as_dict() for output in outputs]
        await tq.async_kv_batch_put(
            keys=[f"{uid}_{session_id}_{place}" for place in range(len(outputs))],
            fields=list_of_dict_to_tensordict(
                [{"rm_scores": row["rm_scores"], "extra_fields": row["extra_fields"]} for row in rows]
            ),
            partition_id="train",
        )


class RewardflowAgentLoopManager(AgentLoopManagerTQ):
    """verl's, with workers that report."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(_ReportingWorker)
