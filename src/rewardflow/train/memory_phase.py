"""One phase of a run, and the most memory that it takes on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

PhaseName = Literal["load", "log-probs", "reference", "values", "update", "publish", "save", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPhase:
    """The bytes at the phase's peak, by kind. `is_calculated`: not seen in a rehearsal of the program itself."""

    name: PhaseName
    by_kind: Mapping[str, int]
    is_calculated: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(self.by_kind.values())

    def changed(self, *, without: tuple[str, ...] = (), **more: int) -> MemoryPhase:
        """Returns the phase without some kinds, and with others beside what it has."""
        kept = {kind: size for kind, size in self.by_kind.items() if kind not in without}
        return replace(self, by_kind={**kept, **{kind: size for kind, size in more.items() if size}})
