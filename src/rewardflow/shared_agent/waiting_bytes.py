"""Limits the bytes of rollouts that each run has waiting at the host.

Always true: the rollouts that a run has sent and whose verdicts it has not confirmed take at most `max_bytes`, or are
those of one message. A message that does not fit is refused as a whole and leaves nothing behind; its client sends it
again later (`connection.py`), so one run cannot use up the memory of the agent that serves the others.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Sequence

from rewardflow.shared_agent.host_clients import HostClient
from rewardflow.shared_agent.messages import Op, Packed, RunFull, ScoreRequest, Submit


class WaitingBytes:
    def __init__(self, max_bytes: float) -> None:
        self._max_bytes = max_bytes
        self._by_run: Counter[str] = Counter()

    def of_run(self, run: str) -> int:
        return self._by_run[run]

    def add(self, client: HostClient, ops: Sequence[Op]) -> None:
        """Counts the rollouts of a message that are new; raises `RunFull`, and counts none, if they do not fit."""
        sizes = {
            serial: _size_of(packed)
            for op in ops
            if isinstance(op, Submit | ScoreRequest)
            for serial, packed in op.rollouts
            if serial not in client.serials and serial not in client.settled
        }
        added, waiting = sum(sizes.values()), self._by_run[client.run]
        if waiting and waiting + added > self._max_bytes:
            raise RunFull(
                f"rollouts of run {client.run!r} that wait for verdicts must fit into {self._max_bytes:,.0f} bytes "
                f"(max_waiting_mb), got {waiting:,} and {added:,} more"
            )
        client.sizes.update(sizes)
        self._by_run[client.run] += added

    def release(self, client: HostClient, serials: Iterable[int]) -> None:
        self._by_run[client.run] -= sum(client.sizes.pop(serial, 0) for serial in serials)
        if not self._by_run[client.run]:
            del self._by_run[client.run]


def _size_of(packed: Packed) -> int:
    return len(pickle.dumps(packed, pickle.HIGHEST_PROTOCOL))
