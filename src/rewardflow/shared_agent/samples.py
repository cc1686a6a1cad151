"""The rollouts that are being judged, the clients that want their verdicts, and the bytes that each run has waiting.

Always true: a rollout that several clients of a run submit is judged once, and all of them get the first verdict on it,
which is final. A run has one rollout at a time for each step, group and index. A serial number submits once: a message
that comes again, or too late, has no effect. The rollouts that a run has sent and whose verdicts it has not confirmed
are at most as many, and take at most as many bytes, as the run may have waiting, or are those of one message. A message
that does not fit is refused as a whole and leaves nothing behind; its client sends it again later (`connection.py`), so
one run cannot use up the memory of the agent that serves the others.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof

from rewardflow.errors import InvalidInput
from rewardflow.reward.groups.incomplete_groups import GroupKey
from rewardflow.reward.journal.verdict_keys import has_same_inputs
from rewardflow.shared_agent.host_clients import HostClient, SampleKey
from rewardflow.shared_agent.messages import Op, Packed, RunFull, ScoreRequest, Submit, pack_rollout, unpack_rollout
from rewardflow.types import EMPTY, Reward, Rollout


@dataclass(slots=True, eq=False)
class _Sample:
    """A rollout that is being judged, and the clients and serial numbers that wait for it."""

    rollout: Rollout
    wanted_by: list[tuple[HostClient, int]]


class Samples:
    def __init__(self) -> None:
        self._samples: dict[SampleKey, _Sample] = {}

    def take_in(self, client: HostClient, rollouts: Sequence[tuple[int, Packed]]) -> list[Rollout]:
        """Notes which rollouts the client wants; returns those that are not being judged yet."""
        fresh: list[Rollout] = []
        for serial, packed in rollouts:
            if serial in client.serials or serial in client.settled:
                continue
            try:
                rollout = unpack_rollout(packed)
            except InvalidInput as error:
                client.tell(serial, Reward(kind="user_error", error=str(error)))
                continue
            if self.want(client, serial, rollout):
                fresh.append(rollout)
        return fresh

    def want(self, client: HostClient, serial: int, rollout: Rollout) -> bool:
        """Notes that the client wants the verdict on a rollout; returns whether it is not being judged yet."""
        key = _key(client.run, rollout)
        sample = self._samples.get(key)
        if sample is not None and not has_same_inputs(sample.rollout, rollout):
            client.tell(serial, _collision(rollout, client.run))
            return False
        client.serials[serial] = key
        if sample is None:
            self._samples[key] = _Sample(rollout, [(client, serial)])
        else:
            sample.wanted_by.append((client, serial))
        return sample is None

    def withdraw(self, client: HostClient, serials: Iterable[int]) -> Collection[GroupKey]:
        """Removes the client's requests; returns the groups that now have a rollout that no client wants."""
        groups: dict[GroupKey, None] = {}
        for serial in serials:
            key = client.serials.pop(serial, None)
            sample = None if key is None else self._samples.get(key)
            if key is None or sample is None:
                continue
            sample.wanted_by = [one for one in sample.wanted_by if one != (client, serial)]
            if not sample.wanted_by:
                groups[key[:3]] = None
        return groups

    def is_wanted(self, run: str, rollout: Rollout) -> bool:
        sample = self._samples.get(_key(run, rollout))
        return sample is not None and bool(sample.wanted_by)

    def tell(self, run: str, rollout: Rollout, reward: Reward, waited_s: float) -> None:
        """Sends the final verdict on a rollout to all clients that want it; later verdicts on it are ignored."""
        sample = self._samples.pop(_key(run, rollout), None)
        if sample is None or not sample.wanted_by:
            return
        for client, serial in sample.wanted_by:
            client.tell(serial, reward, waited_s)

    def clear(self) -> None:
        self._samples.clear()


def _key(run: str, rollout: Rollout) -> SampleKey:
    return run, rollout.step, rollout.group_id, rollout.index


def _collision(rollout: Rollout, run: str) -> Reward:
    return Reward(
        kind="user_error",
        error=f"a run may ask about one rollout at a place at a time, got another one at index {rollout.index} of "
        f"group {rollout.group_id!r}, step {rollout.step}, run {run!r}",
    )


class WaitingRoom:
    """The rollouts of each run that wait: how many they are, and how many bytes they take.

    `max_rollouts_of` tells how many a run may have; None: any number.
    """

    def __init__(self, max_bytes: float, max_rollouts_of: Callable[[str], int | None] = lambda run: None) -> None:
        self._max_bytes = max_bytes
        self._max_rollouts_of = max_rollouts_of
        self._bytes_of: Counter[str] = Counter()
        self._num_of: Counter[str] = Counter()

    def num_bytes(self, run: str) -> int:
        return self._bytes_of[run]

    def num_rollouts(self) -> dict[str, int]:
        """Returns how many rollouts each run has waiting."""
        return dict(self._num_of)

    def add(self, client: HostClient, ops: Sequence[Op]) -> None:
        """Counts the rollouts of a message that are new; raises `RunFull`, and counts none, if they do not fit."""
        sizes = {
            serial: _size_of(packed)
            for op in ops
            if isinstance(op, Submit | ScoreRequest)
            for serial, packed in op.rollouts
            if serial not in client.serials and serial not in client.settled
        }
        self._count(client, sizes)

    def add_local(self, client: HostClient, rollouts: Iterable[tuple[int, Rollout]]) -> None:
        """Counts rollouts by serial number that are in this process already; raises like `add`."""
        self._count(client, {serial: _memory_of(rollout) for serial, rollout in rollouts})

    def _count(self, client: HostClient, sizes: Mapping[int, int]) -> None:
        if not sizes:
            return
        run, added = client.run, sum(sizes.values())
        most, num_waiting = self._max_rollouts_of(run), self._num_of[run]
        if most is not None and num_waiting and num_waiting + len(sizes) > most:
            raise RunFull(
                f"run {run!r} may have {most:,} rollouts waiting (max_waiting), got {num_waiting:,} and "
                f"{len(sizes):,} more"
            )
        if num_waiting and self._bytes_of[run] + added > self._max_bytes:
            raise RunFull(
                f"rollouts of run {run!r} that wait for verdicts must fit into {self._max_bytes:,.0f} bytes "
                f"(max_waiting_mb), got {self._bytes_of[run]:,} and {added:,} more"
            )
        client.sizes.update(sizes)
        self._bytes_of[run] += added
        self._num_of[run] += len(sizes)

    def release(self, client: HostClient, serials: Iterable[int]) -> None:
        released = [size for serial in serials if (size := client.sizes.pop(serial, None)) is not None]
        self._bytes_of[client.run] -= sum(released)
        self._num_of[client.run] -= len(released)
        if self._num_of[client.run] <= 0:
            del self._bytes_of[client.run], self._num_of[client.run]


def _size_of(packed: Packed) -> int:
    return len(pickle.dumps(packed, pickle.HIGHEST_PROTOCOL))


def _memory_of(rollout: Rollout) -> int:
    """Returns about how many bytes a rollout takes; one that holds more than texts is packed for that."""
    has_texts_only = (
        rollout.extra_info is EMPTY
        and not rollout.messages
        and (rollout.ground_truth is None or type(rollout.ground_truth) is str)
        and rollout.token_ids is rollout.log_probs is rollout.response_mask is rollout.token_versions is None
    )
    if not has_texts_only:
        return _size_of(pack_rollout(rollout, with_tokens=True))
    return getsizeof(rollout.response) + getsizeof(rollout.prompt) + getsizeof(rollout.ground_truth)
