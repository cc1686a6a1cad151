"""Where a run computes, and where its reward agent is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices, within


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """Where a run computes: in one process, or as actors of a Ray cluster (cluster.md).

    In a run file `runtime: ray` stands for a cluster of this machine alone, and `runtime: auto` or `runtime: host:port`
    for one to join.
    """

    kind: Literal["embedded", "ray"] = "embedded"  # one process, or many on Ray
    # of a Ray cluster to join, `auto` for the one of this machine; null: start one here, for this run alone
    address: str | None = None
    ranks: int = 1  # processes that train one model together; with schedule.placement=colocated they also generate
    generators: int = 1  # processes that generate, with schedule.placement=separate
    cpus: float = 1.0  # of the cluster, for each of these processes
    gpus: float | None = None  # likewise; null: one if the cluster has any
    # whether these processes are put on few nodes or on many
    spread: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    wait_s: float = 600.0  # for room in a cluster that others use

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

    name: str | None = None  # of the agent, which is started if it is not there; null: the run has one of its own
    namespace: str = "rewardflow"  # of the name
    address: str = "auto"  # of the Ray cluster, where the run itself is not on one
    run: str | None = None  # what the run is called there; null: its run_dir
    share: float = 1.0  # of the service, beside the shares of other runs
    env: Sequence[str] = ()  # environment variables that the agent gets from here when the run starts it, such as keys
    resources: Mapping[str, float] = field(default_factory=dict)  # Ray's names for what its node must have
    give_up_s: float = 600.0  # without an answer from it

    def __post_init__(self) -> None:
        within("share", self.share, 0.0, math.inf, low_open=True)
        within("give_up_s", self.give_up_s, 0.0, math.inf, low_open=True)
        for name, amount in self.resources.items():
            within(f"resources.{name}", amount, 0.0, math.inf, low_open=True)
