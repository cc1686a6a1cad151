"""Who keeps the record of a run, and so hears of the calls that are made for it.

Always true: every client that keeps its run's record hears of each call for the run, and of what concerns all runs;
where nobody keeps one there is no sink, and nothing is packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rewardflow.observe.events import Event, EventSink
from rewardflow.shared_agent.messages import pack_event
from rewardflow.shared_agent.outbox import Outbox


@dataclass(frozen=True, slots=True)
class _Ear:
    """The sink of a run's calls: for each of its clients that keep a record."""

    outboxes: Sequence[Outbox]

    def emit(self, event: Event) -> None:
        news = pack_event(event)
        for outbox in self.outboxes:
            outbox.put_news(news)


class Listeners:
    """Itself a sink, for what concerns all runs."""

    def __init__(self) -> None:
        self._ears: dict[str, _Ear] = {}  # by run, where somebody keeps its record

    def note(self, run: str, outboxes: Iterable[Outbox]) -> None:
        """These are now all that listen for the run."""
        self._ears.pop(run, None)
        if listening := tuple(outboxes):
            self._ears[run] = _Ear(listening)

    def of(self, run: str) -> EventSink | None:
        return self._ears.get(run)

    def emit(self, event: Event) -> None:
        for ear in self._ears.values():
            ear.emit(event)

    def clear(self) -> None:
        self._ears.clear()
