"""verl's agent loop for trainer mode `rewardflow`: stores a trajectory at once and its score when the verdict comes.

Always true: a trajectory is in TransferQueue before its rollout goes to the judge, with NaN in the place of the score,
so that log-probs can be taken meanwhile; the scores of a group are stored together, before verl calls it finished; a
rollout without a verdict keeps NaN and never gets a number; every group is reported once, whatever happens to its
rollouts. Loaded by verl only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rewardflow.adapters.verl.accounting.board_actor import BOARD_KEY
from rewardflow.adapters.verl.accounting.group_report import GroupVerdicts
from rewardflow.adapters.verl.contact import AgentLoopContact
from rewardflow.adapters.verl.job_agent import judge_for_job
from rewardflow.adapters.verl.training.open_group import GroupIncomplete, OpenGroup
from rewardflow.adapters.verl.verl_rows import GROUP_SIZE_FIELD, row_key
from rewardflow.adapters.verl.verl_verdict import VerdictFailed, extra_info_of, reward_of
from rewardflow.errors import AgentHalted
from rewardflow.types import Reward

logger = logging.getLogger(__name__)

# Fields of an output that verl adds after the verdict, and that therefore no reward sees.
_LATER_FIELDS = ("reward_extra_info", "teacher_ids", "teacher_logprobs")


class _ReportingWorker(AgentLoopContact, AgentLoopWorkerTQ.__ray_actor_class__):  # verl made an actor of it
    """Generates groups, sends their rollouts to the judge, and tells the board how far each group is."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._board = ray.get_actor(config[BOARD_KEY])
        self._judge = judge_for_job(OmegaConf.to_container(config, resolve=True), self.tokenizer)
        self._groups: dict[str, OpenGroup] = {}

    async def live(self) -> None:
        """Never returns, so that Ray fails the call when this process dies, and its groups with it."""
        await asyncio.Event().wait()

    async def run_group(self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: bool) -> None:
        uid, rollout = prompt["uid"], self.config.actor_rollout_ref.rollout
        validates = bool(trajectory["validate"])
        size = int(prompt.get("__rollout_n__", rollout.val_kwargs.n if validates else rollout.n))
        verdicts = GroupVerdicts(int(prompt["global_steps"]))
        group = self._groups[uid] = OpenGroup(size, validates, self._judge.needs_groups, verdicts)
        prompt[GROUP_SIZE_FIELD] = size
        try:
            await super().run_group(prompt, sampling_params, trajectory, trace)
        except Exception as error:  # verl catches errors of rollouts, but TransferQueue may fail too
            logger.exception("prompt %s was given up", uid)
            group.error = _reason(error)
        del self._groups[uid]
        if validates:
            await self._board.validated.remote()
            return
        report = verdicts.report(uid, size=size, judged_s=time.time(), error=group.error)
        await self._board.judged.remote(report)

    async def run_rollout(self, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        group = self._groups[kwargs["uid"]]
        try:
            return await super().run_rollout(sampling_params, trajectory, **kwargs)
        except Exception as error:
            group.error = _reason(error)
            raise
        finally:
            session = int(kwargs["session_id"])
            group.ended(session)
            await self._generation_ended(kwargs["uid"], session, group)
            if group.is_over and group.scores:
                await self._store(group)

    async def judge_and_store(self, output: Any, validate: bool, **kwargs: Any) -> None:
        """Lets verl store the trajectory, then gets the verdict. The score is stored with the group's others."""
        outputs = output if isinstance(output, list) else [output]
        if validate or not outputs or outputs[-1].reward_score is not None:
            await super().judge_and_store(output, validate, **kwargs)
            return
        uid, session, final = kwargs["uid"], int(kwargs["session_id"]), outputs[-1]
        group = self._groups[uid]
        final.reward_score = math.nan  # for now; verl asks for a verdict only where a score is missing
        final.extra_fields["reward_extra_info"] = {}
        await super().judge_and_store(outputs, validate, **kwargs)
        verdicts = group.verdicts
        is_first = not verdicts.asked_s
        verdicts.asked_s[session] = time.time()
        if is_first:  # the board needs no more to count the time with verdicts outstanding
            await self._board.asked.remote(uid, session, verdicts.step)
        await self._generation_ended(uid, session, group)
        final.reward_score = None
        reward = await self._verdict(outputs, kwargs)
        verdicts.answered(session, reward, at_s=time.time())
        if reward.value is not None:
            group.scores.update(_scores(outputs, uid, session))

    async def _generation_ended(self, uid: str, session: int, group: OpenGroup) -> None:
        """Tells the board once the whole group is generated.

        Called when a rollout's trajectory is stored, and again when the rollout is over: it may have no trajectory.
        """
        if group.generated(session) and not group.validates:
            await self._board.generated.remote(uid)

    async def _store(self, group: OpenGroup) -> None:
        """Stores the scores of all rollouts in one call of TransferQueue."""
        try:
            await tq.async_kv_batch_put(
                keys=list(group.scores),
                fields=list_of_dict_to_tensordict(list(group.scores.values())),
                partition_id="train",
            )
        except Exception as error:
            group.error = _reason(error)
            raise

    async def score(self, outputs: Any, fields: dict[str, Any]) -> None:
        """Asks the agent for a missing score, in training and in validation.

        verl would send the sample to one of its reward workers, which would send it to the agent: this process has all
        that the agent needs.
        """
        final = outputs[-1]
        if final.reward_score is not None:
            return
        started_s = time.monotonic()
        try:
            async with self._groups[fields["uid"]].asking(int(fields["session_id"])):
                rollout = await self._judge.rollout(
                    {
                        **fields,
                        "__num_turns__": final.num_turns,
                        "tool_extra_fields": _without_later(final.extra_fields),
                    },
                    prompt_ids=final.prompt_ids,
                    response_ids=final.response_ids,
                )
                reward = await self._judge.verdict(rollout)
        except AgentHalted as error:
            await self._board.halt.remote(_reason(error))
            raise
        if reward.value is None:
            raise VerdictFailed(reward)
        final.reward_score = reward.value
        final.extra_fields["reward_extra_info"] = extra_info_of(reward)
        final.metrics.compute_score = time.monotonic() - started_s

    async def _verdict(self, outputs: Any, kwargs: dict[str, Any]) -> Reward:
        """Gets the agent's verdict. Any error becomes a failed verdict."""
        try:
            await self.score(outputs, kwargs)
        except GroupIncomplete as error:
            return Reward(kind="cancelled", error=str(error))
        except VerdictFailed as error:
            failed: Reward = error.reward
            return failed
        except AgentHalted as error:
            return Reward(kind="outage", error=_reason(error))
        except Exception as error:
            return Reward(kind="service", error=f"the sample could not be judged: {_reason(error)}")
        final = outputs[-1]
        return reward_of(final.reward_score, final.extra_fields["reward_extra_info"])


def _scores(outputs: Any, uid: str, session: int) -> dict[str, dict[str, Any]]:
    """Returns the scores by row, where verl would have put them: on the last token of each response."""
    final = outputs[-1]
    for output in outputs[:-1]:
        output.reward_score = final.reward_score
        output.extra_fields["reward_extra_info"] = final.extra_fields["reward_extra_info"]
    rows = {row_key(uid, session, number): output.as_dict() for number, output in enumerate(outputs)}
    return {key: {"rm_scores": row["rm_scores"], "extra_fields": row["extra_fields"]} for key, row in rows.items()}


def _without_later(extra_fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in extra_fields.items() if name not in _LATER_FIELDS}


def _reason(error: Exception) -> str:
    """Returns an error in one line, also one from another process, which Ray makes a page of."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}"


class RewardflowAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager, with workers that report to the board."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(_ReportingWorker)

    def lifelines(self) -> list[Any]:
        """Returns for each worker an answer that does not come while the worker lives."""
        return [worker.live.remote() for worker in self.agent_loop_workers]
