"""Builds the reward agent that a run's settings describe: its own, or a client of one that several runs share.

Always true: nothing is sent and no model is loaded here; a reward that cannot be found, built or called is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import JOURNAL_FILE
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.agent_statistics import AgentStatistics
from rewardflow.reward.component import as_parts
from rewardflow.runtime.on_ray.cluster import joined
from rewardflow.services.reward_file import load_reward_contents, load_reward_file
from rewardflow.settings.run_settings import RunSettings
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.shared_agent.ray_actor import connect
from rewardflow.shared_agent.remote_calls import ClientStatistics
from rewardflow.shared_agent.spec import AgentSpec
from rewardflow.types import EMPTY

RunAgent = RewardAgent | SharedAgent


def agent_of_run(settings: RunSettings, *, folder: Path) -> RunAgent:
    """Builds the agent; enter it inside `shared_cluster`. `folder` is where relative paths in the settings start."""
    shared = settings.shared_agent
    if shared.name is None:
        return build_agent(settings, folder=folder)
    missing = [name for name in shared.env if name not in os.environ]
    if missing:
        raise InvalidInput(f"shared_agent.env must name variables that are set, got {', '.join(missing)}")
    spec = AgentSpec.of(settings.reward, reward_kwargs=settings.reward_kwargs, folder=folder, **settings.limits)
    return connect(
        spec,
        run=shared.run or str(Path(str(settings.run_dir)).absolute()),
        name=shared.name,
        namespace=shared.namespace,
        share=shared.share,
        env={name: os.environ[name] for name in shared.env},
        resources=shared.resources,
        give_up_s=shared.give_up_s,
        run_dir=settings.run_dir,
    )


def shared_cluster(settings: RunSettings) -> AbstractContextManager[None]:
    """Joins the Ray cluster of the shared agent, if there is one; for a run on Ray that is the run's own."""
    return nullcontext() if settings.shared_agent.name is None else joined(settings.shared_agent.address)


def spent_usd(statistics: AgentStatistics | ClientStatistics) -> float:
    """Returns what this run has spent."""
    return statistics.cost_usd if isinstance(statistics, ClientStatistics) else statistics.ledger.spent_usd


def keeps_texts(agent: RunAgent, settings: RunSettings, *, folder: Path) -> bool:
    """Whether the run may write texts of prompts, responses and verdicts, as its journal may (`limits.store`)."""
    own = agent if isinstance(agent, RewardAgent) else build_agent(settings, folder=folder, keeps=False)
    return own.settings.store != "hash"


def build_agent(settings: RunSettings, *, folder: Path, keeps: bool = True) -> RewardAgent:
    """Builds an own agent. `keeps=False`: it has no journal and writes nothing to the run directory.

    `folder` is where relative paths in the settings start.
    """
    reward: Any = settings.reward
    options: dict[str, Any] = {}
    if isinstance(reward, Mapping):
        loaded = load_reward_contents(reward, folder=folder)
        reward, options = loaded.parts, loaded.options
    elif reward.endswith((".yaml", ".yml")):
        loaded = load_reward_file(reward)
        reward, options = loaded.parts, loaded.options
    if any(getattr(part.reward, "late_answers", None) is not None for part in as_parts(reward, EMPTY)):
        raise InvalidInput(
            "a run must not wait for batches, which may take 24 hours: remove batch from the reward that it trains or "
            "measures with; score, rejudge, judge test and an audit may use it"
        )
    options |= settings.limits
    if settings.run_dir is not None:
        options = {"journal": Path(settings.run_dir) / JOURNAL_FILE, "run_dir": settings.run_dir, **options}
    if not keeps:
        options |= {"journal": None, "run_dir": None}
    return RewardAgent(reward, reward_kwargs=settings.reward_kwargs, **cast("Any", options))
