"""What travels of a service, and what is made again where it arrives."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.reward.code.source import RewardSource
from rewardflow.services import Cascade, JsonScorer, LLMJudge
from rewardflow.services.rules import GSM8K
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


def test_a_service_with_http_connections_takes_keep_alive_and_its_identity_stays() -> None:
    identities = {
        RewardSource.of(reward).find().identity
        for keep_alive in (True, False)
        for reward in (JsonScorer(urls="http://localhost:1/score", keep_alive=keep_alive),)
    }
    assert len(identities) == 1
    with pytest.raises(InvalidInput, match="keep_alive must be true or false, got 'no'"):
        JsonScorer(urls="http://localhost:1/score", keep_alive="no")  # type: ignore[arg-type]


def test_a_judge_without_keep_alive_has_the_same_verdicts_alone_and_in_a_cascade() -> None:
    judges = [LLMJudge(model="m", base_urls=["http://localhost:1"], keep_alive=one) for one in (True, False)]
    cascades = [Cascade(first=GSM8K(), then=judge) for judge in judges]
    for rewards in (judges, cascades):
        assert len({RewardSource.of(reward).find().identity for reward in rewards}) == 1
