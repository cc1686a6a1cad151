"""Chooses which endpoint of a service gets the next call; each endpoint has a breaker.

Always true: a service has at least one endpoint (a nameless one if none was given); a call goes to the least busy
endpoint that is not broken; a retry goes to another endpoint if it can; the service is out only when every endpoint is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.observe.redact import address_to_show
from rewardflow.reward.limits.breaker import Breaker, BreakerStatistics


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    name: str | None
    in_flight: int
    calls: int
    breaker: BreakerStatistics


class Endpoint:
    """One address of a service, with its breaker and its counts; `shown` is the name without credentials."""

    __slots__ = ("breaker", "calls", "in_flight", "name", "shown")

    def __init__(self, name: str | None, breaker: Breaker) -> None:
        self.name = name
        self.shown = None if name is None else address_to_show(name)
        self.breaker = breaker
        self.in_flight = 0
        self.calls = 0

    def statistics(self) -> EndpointStatistics:
        return EndpointStatistics(self.shown, self.in_flight, self.calls, self.breaker.statistics())


class Endpoints:
    """All endpoints of one service."""

    def __init__(self, names: Sequence[str], *, window: int, share: float | None) -> None:
        self._all = tuple(Endpoint(name, Breaker(window=window, share=share)) for name in (names or (None,)))
        self._only = self._all[0] if len(self._all) == 1 else None

    @property
    def is_single(self) -> bool:
        return self._only is not None

    def ready_at(self, now: float) -> float:
        """Returns when the first endpoint may take a call."""
        if self._only is not None:
            return self._only.breaker.ready_at(now)
        return min(endpoint.breaker.ready_at(now) for endpoint in self._all)

    def start(self, now: float, avoid: Endpoint | None) -> Endpoint:
        """Chooses the endpoint for a call that starts now; call it only when `ready_at` is not in the future."""
        chosen = self._only or self._choose(now, avoid)
        chosen.in_flight += 1
        chosen.calls += 1
        chosen.breaker.start(now)
        return chosen

    def outage_since_s(self) -> float | None:
        """Returns since when every endpoint has been broken, or None."""
        opened = [endpoint.breaker.open_since_s for endpoint in self._all]
        return None if None in opened else max(since for since in opened if since is not None)

    def is_probe_due(self, now: float) -> bool:
        """Says whether a call that starts now is the probe of a broken endpoint."""
        return any(endpoint.breaker.is_open and endpoint.breaker.ready_at(now) <= now for endpoint in self._all)

    def last_failure(self) -> str | None:
        """Returns the last failure of any endpoint; None if no call has failed yet."""
        reasons = (endpoint.breaker.statistics().last_failure for endpoint in self._all)
        return next((reason for reason in reasons if reason), None)

    def statistics(self) -> tuple[EndpointStatistics, ...]:
        return tuple(endpoint.statistics() for endpoint in self._all)

    def _choose(self, now: float, avoid: Endpoint | None) -> Endpoint:
        ready = [endpoint for endpoint in self._all if endpoint.breaker.ready_at(now) <= now]
        others = [endpoint for endpoint in ready if endpoint is not avoid] or ready
        working = [endpoint for endpoint in others if not endpoint.breaker.is_open]
        # A broken endpoint that is due for its probe gets exactly one call, and gets it now, or it would never recover.
        # A retry is no probe if it can be made elsewhere: a request at fault would go from one broken endpoint to the
        # next for ever, because failures there use up no attempt.
        if avoid is None or not working:
            for endpoint in others:
                if endpoint.breaker.is_open:
                    return endpoint
        return min(working, key=lambda endpoint: (endpoint.in_flight, endpoint.calls))
