"""Goes through a set of prompts endlessly, epoch after epoch, and can save and restore its position.

Always true: each prompt comes once in every epoch; prompts that were given back come once more, before all others, in
the order of their return; a restored cursor gives exactly the prompts that the saved one would have given next. A
`take` that fails takes nothing.

A state is plain JSON: the epoch, the position in it, the uids given back, and everything that the order depends on: the
set's fingerprint, the seed, and whether it is shuffled.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt
from rewardflow.settings.rules import at_least

logger = logging.getLogger(__name__)

_VERSION = 1
_MAX_LEFT_OUT_IN_A_ROW = 10_000  # of an endless set, before the cursor gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStatistics:
    """Counts since the cursor was made. `num_waiting` prompts were given back and not taken again."""

    epoch: int
    position: int
    num_waiting: int
    num_taken: int
    num_given_back: int
    num_left_out: int


@dataclass(frozen=True, slots=True)
class _Place:
    epoch: int = 0
    position: int = 0


class PromptCursor:
    """A `PromptSource`. It leaves out prompts for which `keep` is false, each time they come up."""

    def __init__(
        self, prompts: PromptSet, *, seed: int = 0, shuffle: bool = True, keep: Callable[[Prompt], bool] | None = None
    ) -> None:
        self._prompts = prompts
        self._seed = seed
        self._is_shuffled = shuffle and prompts.size is not None  # an endless set is random already
        self._keep = keep
        self._place = _Place()
        self._waiting: deque[int] = deque()
        self._order: tuple[int, Sequence[int]] | None = None  # of one epoch
        self._num_taken = self._num_given_back = self._num_left_out = 0

    def take(self, count: int) -> Sequence[Prompt]:
        at_least("count", count, 0)
        place, waiting = self._place, deque(self._waiting)
        taken: list[Prompt] = []
        num_left_out = in_a_row = 0
        while len(taken) < count:
            if waiting:
                index = waiting.popleft()
            else:
                index, place = self._next(place)
            prompt = self._prompts[index]
            if self._keep is None or self._keep(prompt):
                taken.append(prompt)
                in_a_row = 0
            else:
                num_left_out, in_a_row = num_left_out + 1, in_a_row + 1
                self._check_left_out(in_a_row)
        self._place, self._waiting = place, waiting
        self._num_taken += len(taken)
        self._num_left_out += num_left_out
        if num_left_out:
            logger.info("left out %d prompts that do not fit, %d in total", num_left_out, self._num_left_out)
        return taken

    def give_back(self, prompts: Sequence[Prompt]) -> None:
        indices = [self._index(prompt.uid) for prompt in prompts]
        self._waiting.extend(indices)
        self._num_given_back += len(indices)

    def state(self, in_flight: Sequence[Prompt] = ()) -> dict[str, Any]:
        """Returns the state, as if `in_flight`, prompts that are taken but not used yet, had been given back first."""
        uids = [str(self._index(prompt.uid)) for prompt in in_flight]
        return {
            "version": _VERSION,
            "epoch": self._place.epoch,
            "position": self._place.position,
            "given_back": [*uids, *map(str, self._waiting)],
            "data": self._identity(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != _VERSION:
            raise InvalidInput(f"a cursor's state must have version {_VERSION}, got {state.get('version')!r}")
        self._check_same_data(state.get("data"))
        epoch, position = _whole(state, "epoch"), _whole(state, "position", at_most=self._prompts.size)
        given_back = state.get("given_back")
        if not isinstance(given_back, list):
            raise InvalidInput(f"given_back of a cursor's state must be a list of uids, got {given_back!r:.80}")
        self._waiting = deque([self._index(uid) for uid in given_back])
        self._place = _Place(epoch, position)

    def statistics(self) -> CursorStatistics:
        return CursorStatistics(
            epoch=self._place.epoch,
            position=self._place.position,
            num_waiting=len(self._waiting),
            num_taken=self._num_taken,
            num_given_back=self._num_given_back,
            num_left_out=self._num_left_out,
        )

    def _next(self, place: _Place) -> tuple[int, _Place]:
        size = self._prompts.size
        if place.position == size:
            place = _Place(place.epoch + 1)
        after = _Place(place.epoch, place.position + 1)
        if size is None or not self._is_shuffled:
            return place.position, after
        if self._order is None or self._order[0] != place.epoch:
            self._order = place.epoch, epoch_order(size, self._seed, place.epoch)
        return self._order[1][place.position], after

    def _check_left_out(self, num_left_out: int) -> None:
        """Gives up after two epochs: the end of one and the start of the next may leave out almost that many."""
        size = self._prompts.size
        if num_left_out > (_MAX_LEFT_OUT_IN_A_ROW if size is None else 2 * size + len(self._waiting)):
            of = "an endless set" if size is None else f"a set of {size:,}"
            raise InvalidInput(f"at least one prompt must fit, got {num_left_out:,} of {of} in a row that do not")

    def _index(self, uid: Any) -> int:
        size = self._prompts.size
        is_number = isinstance(uid, str) and uid.isdecimal() and uid == str(int(uid))
        if not is_number or (size is not None and int(uid) >= size):
            of = "" if size is None else f", of which there are {size:,}"
            raise InvalidInput(f"a uid must be that of a prompt of this set{of}, got {uid!r:.80}")
        return int(uid)

    def _identity(self) -> dict[str, Any]:
        return {**self._prompts.fingerprint, "shuffle": self._is_shuffled, "seed": self._seed}

    def _check_same_data(self, before: Any) -> None:
        now = self._identity()
        before = before if isinstance(before, Mapping) else {}
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if changed:
            changes = ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in changed)
            raise InvalidInput(f"a state can only be restored onto the prompts it belongs to, but {changes}")


def epoch_order(size: int, seed: int, epoch: int) -> list[int]:
    """Returns a permutation that depends only on (size, seed, epoch), not on a random generator, library or version.

    It is the numbers 0 to size - 1, sorted by the 8-byte BLAKE2b digest of the text "seed/epoch/number".
    """
    start = hashlib.blake2b(f"{seed}/{epoch}/".encode(), digest_size=8)

    def digest_of(number: int) -> bytes:
        digest = start.copy()
        digest.update(str(number).encode())
        return digest.digest()

    return sorted(range(size), key=digest_of)


def _whole(state: Mapping[str, Any], name: str, *, at_most: int | None = None) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or (at_most is not None and value > at_most):
        most = "" if at_most is None else f" and at most {at_most}"
        raise InvalidInput(f"{name} of a cursor's state must be a whole number of at least 0{most}, got {value!r:.80}")
    return value
