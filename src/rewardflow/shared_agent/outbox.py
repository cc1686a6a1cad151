"""What a client is still to be told: verdicts, and what its run's record is made from.

Always true: what was handed out and not confirmed comes again, in the order it came; what was confirmed never does.
Verdicts have serial numbers, and news are counted, so that a client knows what it has had already.
Verdicts are kept however many there are; of the news for a record only so many, and what was lost is counted.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from rewardflow.shared_agent.messages import Delivery, Halt, Packed, PackedVerdict

MAX_NEWS = 100_000  # some seconds of the fastest judge; clients come at least that often


@dataclass(slots=True)
class _Parcel:
    verdicts: list[PackedVerdict] = field(default_factory=list)
    news: list[Packed] = field(default_factory=list)
    num_lost: int = 0


class Outbox:
    """Handed out by `hand_over`, one delivery at a time."""

    def __init__(self, *, max_news: int = MAX_NEWS) -> None:
        self._max_news = max_news
        self._name = uuid.uuid4().hex
        self._number = 0
        self._num_news = 0
        self._waiting = _Parcel()
        self._handed_out = _Parcel()

    @property
    def has_verdicts(self) -> bool:
        return bool(self._waiting.verdicts)

    @property
    def num_verdicts(self) -> int:
        """That the client has not said it has."""
        return len(self._waiting.verdicts) + len(self._handed_out.verdicts)

    def put(self, verdict: PackedVerdict) -> None:
        self._waiting.verdicts.append(verdict)

    def put_news(self, news: Packed) -> None:
        """Nobody is woken for it: it travels with the next verdicts."""
        if len(self._waiting.news) < self._max_news:
            self._waiting.news.append(news)
            self._num_news += 1
        else:
            self._waiting.num_lost += 1

    def confirm(self, number: int) -> list[int]:
        """The client has every delivery up to this one; the serial numbers of what it has now for good."""
        if number != self._number:
            self.take_back()
            return []
        confirmed, self._handed_out = self._handed_out, _Parcel()
        return [serial for serial, _, _ in confirmed.verdicts]

    def hand_over(self, *, halt: Halt | None, sent_s: float) -> Delivery:
        self._number += 1
        parcel = self._handed_out = self._waiting
        self._waiting = _Parcel()
        return Delivery(
            self._number,
            parcel.verdicts,
            halt,
            news=parcel.news,
            num_news_lost=parcel.num_lost,
            sent_s=sent_s,
            box=self._name,
            first_news=self._num_news - len(parcel.news),
        )

    def take_back(self) -> None:
        """What was handed out last may not have arrived."""
        again, later = self._handed_out, self._waiting
        self._handed_out = _Parcel()
        self._waiting = _Parcel(
            again.verdicts + later.verdicts, again.news + later.news, again.num_lost + later.num_lost
        )
