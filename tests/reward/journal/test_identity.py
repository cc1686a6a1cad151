"""A reward's identity is its source and settings for users' rewards, and a frozen name for shipped ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.journal.identity import FrozenIdentity, identity_of
from rewardflow.settings.reward_kinds import KINDS
from rewardflow.types import Reward, Rollout


@dataclass(frozen=True)
class Shipped:
    frozen_identity: ClassVar = FrozenIdentity("shipped:Shipped", "1")

    scale: float = 1.0

    def compute_score(self, rollout: Rollout) -> float:
        return self.scale

    def decide(self, rollout: Rollout) -> Reward | None:
        return None


class Derived(Shipped):
    def compute_score(self, rollout: Rollout) -> float:
        return 2.0


def identity(reward: Any) -> str:
    return RewardSource.of(reward).find().identity


def test_name_and_source_of_a_shipped_reward_do_not_count() -> None:
    one = identity_of(Shipped(), "old.module:Shipped", b"class Shipped: ...", [], None)
    assert one == identity_of(Shipped(), "new.module:Shipped", b'class Shipped: "reworded"', [], None)


def test_a_raised_revision_and_other_settings_make_another_identity() -> None:
    class Revised(Shipped):
        frozen_identity: ClassVar = FrozenIdentity("shipped:Shipped", "2")

    assert len({identity(Shipped()), identity(Revised()), identity(Shipped(scale=2.0))}) == 3


def test_a_subclass_of_a_shipped_reward_is_known_by_its_own_code() -> None:
    assert identity(Derived()) != identity(Shipped())
    assert identity_of(Derived(), "a:Derived", b"1", [], None) != identity_of(Derived(), "a:Derived", b"2", [], None)


def test_a_method_of_a_shipped_reward_is_known_by_its_name() -> None:
    assert identity(Shipped().decide) != identity(Shipped().compute_score)
    assert identity(Shipped().decide) == identity(Shipped().decide)


def test_a_partial_is_known_by_what_it_wraps() -> None:
    assert identity(functools.partial(Shipped().compute_score)) != identity(functools.partial(Shipped().decide))


@pytest.mark.parametrize("kind", KINDS)
def test_every_reward_that_a_reward_file_can_name_has_a_frozen_identity(kind: str) -> None:
    module, _, name = KINDS[kind].partition(":")
    service = getattr(__import__(module, fromlist=[name]), name)
    assert isinstance(vars(service)["frozen_identity"], FrozenIdentity)
