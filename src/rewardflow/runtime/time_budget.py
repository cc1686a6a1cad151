"""How long a run may take, where a cluster ends what takes longer.

Always true: the time is up while another step like the longest so far, and a save, would still fit.
"""

from __future__ import annotations

_MARGIN = 1.2  # steps differ, and so do disks
_S_PER_HOUR = 3600.0


class TimeBudget:
    def __init__(self, max_hours: float | None, *, started_s: float) -> None:
        self._ends_s = None if max_hours is None else started_s + max_hours * _S_PER_HOUR
        self._longest_step_s = 0.0
        self._longest_save_s = 0.0

    @property
    def is_limited(self) -> bool:
        return self._ends_s is not None

    def stepped(self, duration_s: float) -> None:
        self._longest_step_s = max(self._longest_step_s, duration_s)

    def saved(self, duration_s: float) -> None:
        self._longest_save_s = max(self._longest_save_s, duration_s)

    def is_up(self, now_s: float) -> bool:
        reserve_s = _MARGIN * (self._longest_step_s + self._longest_save_s)
        return self._ends_s is not None and now_s + reserve_s >= self._ends_s
