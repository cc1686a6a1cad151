"""Loads the code of an agent's rewards, checks it before the first call, and closes it after the last.

Always true: a reward that was loaded is closed when the agent's stack unwinds, also if a later one cannot be loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
from collections.abc import Collection, Sequence

from rewardflow.clock import hold
from rewardflow.errors import InvalidInput, RewardflowError, RewardLoadError
from rewardflow.reward.calls.faults import describe
from rewardflow.reward.code.contract import LoadedReward, load_reward
from rewardflow.reward.code.hooks import Hooks
from rewardflow.reward.code.scorer import Scorer, make_worker_pool
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.component import Weighted, part_name
from rewardflow.reward.journal.verdict_journal import Journal
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.reward.settings import AUTO, MAX_THREADS, AgentSettings, LimitSettings


class OpenRewards:
    """The rewards of one agent: `parts` as the user gave them, `scorers` once they are loaded."""

    def __init__(
        self,
        parts: Sequence[Weighted],
        settings: AgentSettings,
        limits: LimitSettings,
        *,
        given: Collection[str],
        run_ledgers: RunLedgers | None,
    ) -> None:
        """`given` names the options that the caller set; `run_ledgers` knows whether single runs have caps."""
        self.parts = parts
        self.scorers: list[Scorer] = []
        self._settings = settings
        self._limits = limits
        self._given = given
        self._run_ledgers = run_ledgers

    @property
    def most_calls(self) -> int:
        """The most calls in flight at a time."""
        limits = [self.limits_of(part).max_concurrency for part in self.parts]
        return sum(MAX_THREADS if limit == AUTO else limit for limit in limits)

    async def load(self, stack: contextlib.AsyncExitStack, hooks: Hooks) -> None:
        """Loads and checks all rewards; the stack closes them."""
        for part in self.parts:
            scorer = self._load(part)
            self.scorers.append(scorer)
            stack.push_async_callback(self._close, scorer, hooks)
            self._check_cap_can_be_kept(scorer)
            await _run_own_check(scorer)

    def limits_of(self, part: Weighted, loaded: LoadedReward | None = None) -> LimitSettings:
        """Returns the limits of a reward: its own, then the agent's as far as they were given, then what is usual."""
        answers = None if loaded is None else loaded.late_answers
        usual = {} if answers is None else {n: v for n, v in answers.usual_limits.items() if n not in self._given}
        return dataclasses.replace(self._limits, **{**usual, **(part.limits or {})})

    async def resume_requests(self, journal: Journal) -> None:
        """Lets rewards whose answers come late find what earlier sessions of this run have sent."""
        for scorer in self.scorers:
            if (answers := scorer.loaded.late_answers) is not None:
                scope = f"{self._settings.run}\0{scorer.name}\0{scorer.loaded.identity}"
                with hold(asyncio.get_running_loop()):
                    await asyncio.to_thread(answers.resume, journal.path, scope)

    def all_saved(self) -> None:
        """Tells rewards whose answers come late that the journal has closed with every verdict on disk."""
        for scorer in self.scorers:
            if (answers := scorer.loaded.late_answers) is not None:
                answers.all_saved()

    def _load(self, part: Weighted) -> Scorer:
        source = RewardSource.of(part.reward, part.reward_kwargs)
        loaded = load_reward(source)
        return Scorer(part_name(part), loaded, make_worker_pool(source, loaded, self.limits_of(part, loaded)))

    def _check_cap_can_be_kept(self, scorer: Scorer) -> None:
        """Refuses a cost limit for a reward whose calls have no known price: it could not be kept."""
        settings, price_problem = self._settings, scorer.loaded.price_problem
        has_run_caps = self._run_ledgers is not None and self._run_ledgers.has_caps
        has_cap = settings.max_cost_usd is not None or has_run_caps
        if not has_cap or settings.call_cost_usd is not None or price_problem is None:
            return
        problem = price_problem()
        if problem is not None:
            cap = "max_cost_usd" if settings.max_cost_usd is None else f"max_cost_usd={settings.max_cost_usd:g}"
            raise InvalidInput(
                f"{cap} can be kept only if the cost of every call is known, and for {scorer.name} {problem}"
            )

    async def _close(self, scorer: Scorer, hooks: Hooks) -> None:
        if scorer.loaded.close is not None:
            await hooks.run(f"{scorer.name}.close", scorer.loaded.close, timeout_s=self._settings.close_timeout_s)
        await scorer.aclose(self._settings.close_timeout_s)


async def _run_own_check(scorer: Scorer) -> None:
    """Calls the reward's own `check`, which reports a missing key or file before the first call."""
    if scorer.loaded.check is None:
        return
    try:
        result = scorer.loaded.check()
        if inspect.isawaitable(result):
            await result
    except RewardflowError:
        raise
    except Exception as error:
        raise RewardLoadError(f"{scorer.name} cannot be used: {describe(error)}") from error
