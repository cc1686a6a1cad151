"""Reserves room for a run's processes in a cluster.

Always true: a cluster that could never hold the run is refused at once, with what is needed and what is there; a run
waits for a cluster that is only busy, and says what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import RuntimeSettings

Resources = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The resources of `count` processes, each with its CPUs and GPUs on one node. `why` explains the count.

    The last `num_wide` of them have `width` times the GPUs: engines that spread one model over several.
    """

    count: int
    cpus: float
    gpus: float
    num_wide: int = 0
    width: int = 1
    why: str = ""

    @classmethod
    def of(
        cls,
        runtime: RuntimeSettings,
        *,
        count: int,
        total: Resources,
        num_wide: int = 0,
        width: int = 1,
        why: str = "",
    ) -> Need:
        gpus = runtime.gpus if runtime.gpus is not None else float(total.get("GPU", 0) > 0)
        return cls(count=count, cpus=runtime.cpus, gpus=gpus, num_wide=num_wide, width=width, why=why)

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The resources of each process, in order."""
        narrow, wide = self._bundle(self.gpus), self._bundle(self.gpus * self.width)
        return [narrow] * (self.count - self.num_wide) + [wide] * self.num_wide

    def _bundle(self, gpus: float) -> dict[str, float]:
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", gpus)) if amount}

    def __str__(self) -> str:
        each = _shown(self.bundles[0]) or "nothing"
        has_wide = self.num_wide and self.bundles[-1] != self.bundles[0]
        wide = f", {self.num_wide} of them with {self.gpus * self.width:g} GPU" if has_wide else ""
        why = f" ({self.why})" if self.why else ""
        return f"{self.count} process{'es' if self.count > 1 else ''} with {each} each{wide}{why}"


def check_room(need: Need, nodes: Sequence[Resources], *, is_strictly_spread: bool = False) -> None:
    """Raises if the processes could never fit. `nodes` are the live ones, with all resources, used or not."""
    held = _number_that_fit(need, nodes, is_strictly_spread=is_strictly_spread)
    if held < need.count:
        there = "; ".join(_shown(node) or "nothing" for node in nodes) or "none"
        each = ", no two of them on one node" if is_strictly_spread else ""
        raise InvalidInput(
            f"the cluster is too small: the run needs {need}{each}, and there is room for {held} on its "
            f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} ({there}); lower runtime.ranks, or what each asks for "
            "(runtime.cpus, runtime.gpus), or add nodes"
        )


def neighbours_together(nodes: Mapping[int, str]) -> list[int]:
    """Orders the places of a group so that those of one node follow each other; `nodes` gives the node of each place.

    Ranks that follow each other exchange most: with Megatron, those that share a layer.
    """
    first_place: dict[str, int] = {}
    for place in sorted(nodes):
        first_place.setdefault(nodes[place], place)
    return sorted(nodes, key=lambda place: (first_place[nodes[place]], place))


def nodes_of(group: Any) -> dict[int, str]:
    """Returns the node of each place of a placement group."""
    import ray

    nodes: dict[int, str] = ray.util.placement_group_table(group)["bundles_to_node_id"]
    return nodes


def alive_nodes() -> list[dict[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


async def reserved(need: Need, runtime: RuntimeSettings, tell: Callable[[str], None]) -> Any:
    """Reserves a placement group of Ray with a place for each process."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    check_room(need, alive_nodes(), is_strictly_spread=runtime.spread == "strict_spread")
    free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
    group = placement_group([bundle or {"CPU": 0.001} for bundle in need.bundles], strategy=runtime.spread.upper())
    tell(f"waiting for room in the cluster: {need}; free are {_shown(free) or 'none'}")
    try:
        async with asyncio.timeout(runtime.wait_s):
            await group.ready()
    except TimeoutError:
        remove_placement_group(group)
        raise InvalidInput(
            f"the cluster must have room within runtime.wait_s={runtime.wait_s:g}: the run needs {need} "
            f"({runtime.spread}), and free were {_shown(free) or 'none'}"
        ) from None
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def _number_that_fit(need: Need, nodes: Sequence[Resources], *, is_strictly_spread: bool) -> int:
    """Counts the processes that fit: the largest first, each on the first node with room."""
    left = [dict(node) for node in nodes]
    held = 0
    for bundle in sorted(need.bundles, key=lambda one: -one.get("GPU", 0.0)):
        fitting = next((node for node in left if _fits(bundle, node)), None)
        if fitting is None:
            continue
        held += 1
        if is_strictly_spread:
            left.remove(fitting)
        else:
            fitting.update({name: fitting[name] - amount for name, amount in bundle.items()})
    return held


def _fits(bundle: Resources, node: Resources) -> bool:
    return all(node.get(name, 0.0) + 1e-9 >= amount for name, amount in bundle.items())


def _shown(resources: Resources) -> str:
    named = [(name, resources[name]) for name in ("CPU", "GPU") if resources.get(name)]
    return " and ".join(f"{amount:g} {name}" for name, amount in named)
