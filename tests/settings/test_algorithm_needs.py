"""The table of estimators is complete and means what the flow means."""

from __future__ import annotations

from typing import get_args

from rewardflow.errors import InvalidInput
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.schedule import Schedule, Stream
from rewardflow.reward.agent import RewardAgent
from rewardflow.settings.algorithm_needs import ADVANTAGES, STREAMS, Needs
from rewardflow.settings.run_settings import AdvantageName


def test_it_has_every_choice_of_the_setting() -> None:
    assert tuple(ADVANTAGES) == get_args(AdvantageName)


def test_streams_are_those_that_the_flow_takes_for_what_is_needed() -> None:
    for needs in get_args(Needs):
        for stream in get_args(Stream):
            assert (stream in STREAMS[needs]) == _flow_takes(needs, stream)


def _flow_takes(needs: Needs, stream: Stream) -> bool:
    try:
        FlowParts(
            schedule=Schedule(groups_per_step=2, stream=stream),
            prompts=FakePrompts(),
            generator=FakeGenerator(),
            agent=RewardAgent(lambda solution_str: 0.0),
            trainer=FakeTrainer(),
            advantages=CentredScores(needs=needs),
            group_size=2,
        )
    except InvalidInput:
        return False
    return True
