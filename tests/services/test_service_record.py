"""What travels of a service, and what is made again where it arrives."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property

from rewardflow.services.service_record import ServiceRecord


@dataclass(frozen=True, kw_only=True)
class Counting(ServiceRecord):
    words: str

    @cached_property
    def count(self) -> int:
        return len(self.words.split())


def test_settings_travel_and_what_was_made_of_them_is_made_again() -> None:
    used = Counting(words="one two")
    assert used.count == 2
    arrived = pickle.loads(pickle.dumps(used))
    assert arrived == used
    assert vars(arrived) == {"words": "one two"}
    assert arrived.count == 2
