"""Asks the reward about one sample before a run starts: does the service answer, and what does a verdict cost?

Always true: the sample is not in the run's journal, ledger or directory. A service that cannot be reached, refuses the
call or makes the reward raise is an error within seconds; one that is only slow, busy or unclear is not, because the
agent can handle that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.errors import RewardLoadError
from rewardflow.flow.records import Prompt
from rewardflow.runtime.run_agent import RunAgent, build_agent
from rewardflow.services.http.connecting import unreachable
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Reward, Rollout

logger = logging.getLogger(__name__)

PATIENCE_S = 4.0
_UNKNOWN_ANSWER = "?"
_SAMPLE_SOURCE = "sample"  # so that it is in none of the run's own totals
_GO_ON = " (--no-probe starts without asking)"
_SAMPLE_GROUP_SIZE = 2  # of a reward that compares the rollouts of a group
_HOPELESS = ("service", "user_error")  # what a judge that works does not say about a plain sample
# A flaky service fails five times in a row too rarely to matter, and one that is down has done so after a second.
_QUICK: dict[str, Any] = {
    "max_attempts": 5,
    "backoff_s": 0.2,
    "max_backoff_s": 1.0,
    "outage_share": None,
    "hedge_quantile": None,
    "close_timeout_s": 2.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVerdict:
    """The reward's answer to a made-up response. No rewards: none came within the timeout."""

    rollouts: tuple[Rollout, ...]
    rewards: tuple[Reward, ...]
    num_calls: int  # those that were repeated, too
    elapsed_s: float
    cost_usd: float
    is_priced: bool  # whether cost_usd is what a verdict costs; if not, the price is unknown
    tokens: int
    units: tuple[str, ...]  # of the rewards that make the score: whether each judges a rollout or a whole group
    unreachable: str | None = None  # what no connection could be made to

    @property
    def failure(self) -> Reward | None:
        return next((reward for reward in self.rewards if reward.value is None), None)


async def probe(settings: RunSettings, prompt: Prompt, *, folder: Path) -> None:
    """Raises if the reward cannot be called; warns if it failed in a way that may pass."""
    sample = await ask_about_sample(settings, prompt, folder=folder, patience_s=PATIENCE_S)
    if sample.unreachable is not None:
        raise RewardLoadError(
            f"the reward's service must be reachable, got no connection to {sample.unreachable}{_GO_ON}"
        )
    _judge(sample.rewards)


async def probe_open(agent: RunAgent, prompt: Prompt) -> None:
    """As `probe`, for an open, possibly shared agent; submits as any run does."""
    rewards: tuple[Reward, ...] = ()
    with agent.open(source=_SAMPLE_SOURCE) as ticket:
        ticket.submit(_rollouts(prompt, _likely_answer(prompt), _SAMPLE_GROUP_SIZE))
    try:
        async with asyncio.timeout(PATIENCE_S):
            (group,) = await ticket.all()
            rewards = group.rewards
    except TimeoutError:
        ticket.cancel()
    _judge(rewards)


def _judge(rewards: Sequence[Reward]) -> None:
    failure = next((reward for reward in rewards if reward.value is None), None)
    if failure is not None and failure.kind in _HOPELESS:
        error = " ".join(str(failure.error).split())  # of the user's code, which may take several lines for it
        raise RewardLoadError(
            f"the reward must answer a sample before the run starts, it failed with {failure.kind}: {error}{_GO_ON}"
        )
    if failure is not None:
        logger.warning("the reward failed on a sample (%s: %s); the run starts", failure.kind, failure.error)
    if not rewards:
        logger.warning("the reward has not answered a sample within %g s; the run starts", PATIENCE_S)


async def ask_about_sample(settings: RunSettings, prompt: Prompt, *, folder: Path, patience_s: float) -> SampleVerdict:
    """Returns the verdict on the prompt's ground truth, or on "?" if it has none or judging it needed no call."""
    loop = asyncio.get_running_loop()
    quick = dataclasses.replace(settings, limits={**settings.limits, **_QUICK})
    async with build_agent(quick, folder=folder, keeps=False) as agent:
        units = agent.units
        began_s = loop.time()
        rollouts: tuple[Rollout, ...] = ()
        rewards: tuple[Reward, ...] = ()
        problem = None
        try:
            async with asyncio.timeout(patience_s):
                for answer in dict.fromkeys((_likely_answer(prompt), _UNKNOWN_ANSWER)):
                    if agent.statistics().calls == 0:
                        rollouts = _rollouts(prompt, answer, _SAMPLE_GROUP_SIZE if "group" in units else 1)
                        rewards = ()
                        (group,) = await agent.submit(rollouts).all()
                        rewards = group.rewards
        except TimeoutError:
            problem = await unreachable(agent.statistics().accounts)
        statistics = agent.statistics()
        return SampleVerdict(
            rollouts=rollouts,
            rewards=rewards,
            num_calls=statistics.calls,
            elapsed_s=loop.time() - began_s,
            cost_usd=statistics.ledger.spent_usd,
            is_priced=statistics.ledger.spent_usd > 0 or (statistics.calls > 0 and agent.knows_prices),
            tokens=statistics.ledger.tokens,
            units=units,
            unreachable=problem,
        )


def _rollouts(prompt: Prompt, answer: str, group_size: int) -> tuple[Rollout, ...]:
    """Makes a group of samples. Their answers differ, so that a reward has something to compare."""
    return tuple(
        Rollout(
            group_id=f"sample {answer}",
            index=index,
            group_size=group_size,
            prompt=prompt.text,
            messages=prompt.messages,
            response=answer if index == 0 else _UNKNOWN_ANSWER,
            ground_truth=prompt.ground_truth,
            data_source=prompt.data_source,
            extra_info=prompt.extra_info,
        )
        for index in range(group_size)
    )


def _likely_answer(prompt: Prompt) -> str:
    truth = prompt.ground_truth
    if isinstance(truth, Sequence) and not isinstance(truth, str) and truth:
        truth = truth[0]
    is_plain = isinstance(truth, str | int | float) and not isinstance(truth, bool)
    return str(truth) if is_plain else _UNKNOWN_ANSWER
