"""The reward agent that a run's settings describe.

Always true: nothing is sent and no model is loaded here; a reward that cannot be found, built or called is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rewardflow.config.tree import RunSettings
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.services.reward_file import load_reward_contents, load_reward_file
from rewardflow.run_directory import JOURNAL_FILE


def build_agent(settings: RunSettings, *, folder: Path, keeps: bool = True) -> RewardAgent:
    """`folder` is where relative paths in the settings start; `keeps` says whether it writes to the run directory."""
    reward: Any = settings.reward
    options: dict[str, Any] = {}
    if isinstance(reward, Mapping):
        loaded = load_reward_contents(reward, folder=folder)
        reward, options = loaded.parts, loaded.options
    elif reward.endswith((".yaml", ".yml")):
        loaded = load_reward_file(reward)
        reward, options = loaded.parts, loaded.options
    options |= settings.limits
    if settings.run_dir is not None:
        options = {"journal": Path(settings.run_dir) / JOURNAL_FILE, "run_dir": settings.run_dir, **options}
    if not keeps:
        options |= {"journal": None, "run_dir": None}
    return RewardAgent(reward, reward_kwargs=settings.reward_kwargs, **cast("Any", options))
