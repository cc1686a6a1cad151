"""The settings of where a run computes, and of a shared reward agent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import MAX_SHARE, MIN_SHARE
from rewardflow.settings.rules import at_least, check_choices, within


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """Where a run computes: in one process, or as actors of a Ray cluster (cluster.md).

    In a run file, `runtime: ray` means a cluster of this machine alone, and `runtime: auto` or `runtime: host:port`
    means a cluster to join.
    """

    kind: Literal["embedded", "ray"] = "embedded"  # one process, or many on Ray
    # address of a Ray cluster to join; `auto`: the one on this machine; null: start one here, for this run alone
    address: str | None = None
    ranks: int = 1  # processes that train together; with schedule.placement=colocated they also generate
    generators: int = 1  # processes that generate, with schedule.placement=separate
    cpus: float = 1.0  # CPUs of the cluster for each of these processes
    gpus: float | None = None  # GPUs for each of these processes; null: one if the cluster has any
    # whether to place these processes on few nodes or on many
    spread: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    wait_s: float = 600.0  # seconds to wait for free resources of a busy cluster

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("ranks", "generators"):
            at_least(name, getattr(self, name), 1)
        within("cpus", self.cpus, 0.0, math.inf)
        within("wait_s", self.wait_s, 0.0, math.inf)
        if self.gpus is not None:
            within("gpus", self.gpus, 0.0, math.inf)
        changed = [
            f"{one.name}={getattr(self, one.name)}" for one in fields(self) if getattr(self, one.name) != one.default
        ]
        if self.kind == "embedded" and changed:
            raise InvalidInput(f"settings of a cluster are for kind=ray, got kind=embedded with {', '.join(changed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAgentSettings:
    """One reward agent for several runs, in an actor of a Ray cluster (shared_agent.md)."""

    name: str | None = None  # name of the agent, started if it does not run yet; null: the run has its own agent
    namespace: str = "rewardflow"  # Ray's namespace of the name
    address: str = "auto"  # address of the Ray cluster, if the run itself is not on one
    run: str | None = None  # name of the run at the agent; null: its run_dir
    share: float = 1.0  # this run's share of the service, relative to the shares of other runs; from 0.1 to 10
    env: Sequence[str] = ()  # environment variables, such as keys, to pass on if the run starts the agent
    resources: Mapping[str, float] = field(default_factory=dict)  # Ray resources that its node must have
    give_up_s: float = 600.0  # seconds without an answer after which the run gives up

    def __post_init__(self) -> None:
        within("share", self.share, MIN_SHARE, MAX_SHARE)
        within("give_up_s", self.give_up_s, 0.0, math.inf, low_open=True)
        for name, amount in self.resources.items():
            within(f"resources.{name}", amount, 0.0, math.inf, low_open=True)
