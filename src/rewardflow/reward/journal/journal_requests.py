"""What a journal's owner asks its writer thread to do, and how each request is answered.

Always true: a request is answered once, on the loop thread, whether it succeeded or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rewardflow.reward.journal.reservations import Reservation
from rewardflow.reward.journal.verdict_rows import JournalEntry
from rewardflow.types import Reward


@dataclass(slots=True)
class Find:
    """Looks up verdicts by key; the writer fills in `rewards`."""

    keys: Sequence[bytes]
    failures: bool
    found: Callable[[Mapping[bytes, Reward]], None]
    rewards: Mapping[bytes, Reward] = field(default_factory=dict)

    def answer(self) -> None:
        self.found(self.rewards)


@dataclass(frozen=True, slots=True)
class Write:
    """Saves one verdict."""

    entry: JournalEntry
    saved: Callable[[JournalEntry], None]

    def answer(self) -> None:
        self.saved(self.entry)


@dataclass(slots=True)
class Reserve:
    """Writes reservations of money; the writer says in `is_saved` whether they are on disk."""

    rows: Sequence[Reservation]
    reserved: Callable[[bool], None]
    of_run_cap: str | None = None  # the run whose own cap these rows are for; None: the journal's own
    is_saved: bool = False

    def answer(self) -> None:
        self.reserved(self.is_saved)


@dataclass(frozen=True, slots=True)
class Stop:
    """Saves what is left, closes the file and ends the thread."""

    stopped: asyncio.Future[None]

    def answer(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)


Request = Find | Write | Reserve | Stop
