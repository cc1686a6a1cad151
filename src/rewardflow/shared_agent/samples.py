"""Which rollouts are being judged, and who wants the verdicts.

Always true: a rollout that several clients of a run ask about is judged once, and all of them are told; the first word
on it is the final one. At a place in a run there is one rollout at a time. A serial number asks once: a message that
comes again, or too late, asks for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.verdict_keys import has_same_inputs
from rewardflow.shared_agent.host_clients import Guest, SampleKey
from rewardflow.shared_agent.incomplete_groups import GroupKey
from rewardflow.shared_agent.messages import Packed, pack_reward, unpack_rollout
from rewardflow.types import Reward, Rollout


@dataclass(slots=True, eq=False)
class _Sample:
    """A rollout that is being judged, and the serial numbers under which it is wanted."""

    rollout: Rollout
    wanted_by: list[tuple[Guest, int]]


class Samples:
    def __init__(self) -> None:
        self._samples: dict[SampleKey, _Sample] = {}

    def take_in(self, guest: Guest, rollouts: Sequence[tuple[int, Packed]]) -> list[Rollout]:
        """Note who wants what; those that nobody has asked for yet are to be judged."""
        fresh: list[Rollout] = []
        for serial, packed in rollouts:
            if serial in guest.serials or serial in guest.settled:
                continue
            try:
                rollout = unpack_rollout(packed)
            except InvalidInput as error:
                guest.tell(serial, pack_reward(Reward(kind="user_error", error=str(error))))
                continue
            key = _key(guest.run, rollout)
            sample = self._samples.get(key)
            if sample is None:
                guest.serials[serial] = key
                self._samples[key] = _Sample(rollout, [(guest, serial)])
                fresh.append(rollout)
            elif has_same_inputs(sample.rollout, rollout):
                guest.serials[serial] = key
                sample.wanted_by.append((guest, serial))
            else:
                guest.tell(serial, pack_reward(_collision(rollout, guest.run)))
        return fresh

    def unwant(self, guest: Guest, serials: Iterable[int]) -> Collection[GroupKey]:
        """The client waits for none of these; the groups of which a rollout is now wanted by nobody."""
        groups: dict[GroupKey, None] = {}
        for serial in serials:
            key = guest.serials.pop(serial, None)
            sample = None if key is None else self._samples.get(key)
            if key is None or sample is None:
                continue
            sample.wanted_by = [one for one in sample.wanted_by if one != (guest, serial)]
            if not sample.wanted_by:
                groups[key[:3]] = None
        return groups

    def is_wanted(self, run: str, rollout: Rollout) -> bool:
        sample = self._samples.get(_key(run, rollout))
        return sample is not None and bool(sample.wanted_by)

    def tell(self, run: str, rollout: Rollout, reward: Reward, waited_s: float) -> None:
        """The final word on a rollout. Later words on it are not heard."""
        sample = self._samples.pop(_key(run, rollout), None)
        if sample is None or not sample.wanted_by:
            return
        packed = pack_reward(reward)
        for guest, serial in sample.wanted_by:
            guest.tell(serial, packed, waited_s)

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
