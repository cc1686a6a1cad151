"""Measures how long an account could not start any call, and halts the agent when that takes too long.

Always true: the clock runs only while jobs wait and none can start; it stops when one can, or when none is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rewardflow.errors import ServiceOutage
from rewardflow.observe.events import EventSink, OutageChanged

logger = logging.getLogger(__name__)


class OutageClock:
    def __init__(
        self,
        account: str,
        loop: asyncio.AbstractEventLoop,
        give_up_s: float,
        *,
        sink: EventSink | None,
        is_anyone_waiting: Callable[[], bool],
        give_up_jobs: Callable[[], bool],
        halt: Callable[[ServiceOutage], None],
    ) -> None:
        """`give_up_jobs` fails the waiting jobs if they and not the service are to blame, and says whether it did."""
        self._account = account
        self._loop = loop
        self._give_up_s = give_up_s
        self._sink = sink
        self._is_anyone_waiting = is_anyone_waiting
        self._give_up_jobs = give_up_jobs
        self._halt = halt
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def begin(self, reason: str) -> None:
        """Starts the clock, if it does not run: jobs wait and none can start."""
        self._reason = reason
        if self._timer is None:
            self._timer = self._loop.call_later(self._give_up_s, self._give_up)
            self._tell("began", "outage began")

    def end(self) -> None:
        """Stops the clock: a job can start again, or none waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._tell_end()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        self._timer = None
        if not self._is_anyone_waiting() or self._give_up_jobs():
            self._tell_end()
            return
        self._halt(
            ServiceOutage(
                f"{self._account}: no call could be made for {self._give_up_s:g} s (outage_give_up_s); last failure: "
                f"{self._reason}. Verdicts already reached are kept; when the service is back, run again with the same "
                "journal and nothing is paid twice"
            )
        )

    def _tell_end(self) -> None:
        """Says that the service is back only if calls go on: jobs that were cancelled say nothing about it."""
        self._tell("over", "outage over" if self._is_anyone_waiting() else "no call waits for the service any more")

    def _tell(self, state: str, told: str) -> None:
        logger.warning("%s: %s; last failure: %s", self._account, told, self._reason)
        if self._sink is not None:
            event = OutageChanged(at_s=self._loop.time(), account=self._account, state=state, reason=self._reason)
            self._sink.emit(event)
