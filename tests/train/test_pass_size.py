"""The tokens of a pass shrink until the phases of a plan fit a device, and never below the longest rollout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.flow.schedule import Schedule
from rewardflow.settings.run_settings import DataSettings, GenerationSettings, RunSettings, TrainerSettings
from rewardflow.train.memory_phase import MemoryPhase
from rewardflow.train.pass_size import fewer_tokens, room_for_phases

GIB = 2**30
MODEL_BYTES, TOKEN_BYTES = 10 * GIB, 2**20  # of the device in these tests


def settings(tokens: int, *, longest: int = 1024) -> RunSettings:
    return RunSettings(
        reward="judge.py:f",
        data=DataSettings(task="arithmetic"),
        schedule=Schedule(groups_per_step=8),
        steps=1,
        generation=GenerationSettings(max_prompt_tokens=24, max_response_tokens=longest - 24),
        trainer=TrainerSettings(micro_batch_tokens=tokens),
    )


def phases(tokens: int, *, is_calculated: bool = False) -> tuple[MemoryPhase, ...]:
    held = {"weights": MODEL_BYTES}
    pass_kinds = {"activations": tokens * TOKEN_BYTES // 2, "logits": tokens * TOKEN_BYTES // 2}
    return (
        MemoryPhase(name="load", by_kind=held),
        MemoryPhase(name="update", by_kind={**held, **pass_kinds}, is_calculated=is_calculated),
    )


def test_a_pass_that_fits_stays() -> None:
    assert fewer_tokens(settings(8192), phases(8192), 24 * GIB) is None


def test_a_pass_that_is_too_large_becomes_as_large_as_fits() -> None:
    tokens = fewer_tokens(settings(8192), phases(8192), 16 * GIB)
    assert tokens == 4096  # of 16 GiB, 2 are left free and 10 are weights
    assert fewer_tokens(settings(tokens), phases(tokens), 16 * GIB) is None


def test_a_pass_holds_the_longest_rollout_even_where_that_does_not_fit() -> None:
    assert fewer_tokens(settings(8192, longest=6000), phases(6000), 10 * GIB) is None
    assert fewer_tokens(settings(8192, longest=2000), phases(8000), 10 * GIB) == 2000


def test_a_device_that_is_too_small_for_the_weights_gets_the_smallest_pass() -> None:
    assert fewer_tokens(settings(8192), phases(8192), 8 * GIB) == 1024
    assert fewer_tokens(settings(1024), phases(1024), 8 * GIB) is None


def test_a_phase_that_was_only_calculated_has_no_activations_to_go_by() -> None:
    assert fewer_tokens(settings(8192), phases(8192, is_calculated=True), 12 * GIB) is None


def test_publishing_makes_no_passes_so_a_smaller_one_would_not_help_it() -> None:
    publish = MemoryPhase(name="publish", by_kind={"engine": 20 * GIB, "activations": 2 * GIB})
    assert fewer_tokens(settings(8192), (publish,), 16 * GIB) is None


@pytest.mark.parametrize(("device", "room"), [(80 * GIB, 78 * GIB), (8 * GIB, 7 * GIB)])
def test_room_is_left_for_what_no_plan_counts(device: int, room: int) -> None:
    assert room_for_phases(device) == room


@given(tokens=st.integers(1, 20_000), longest=st.integers(32, 9_000), gib=st.integers(1, 40))
def test_trying_again_ends_with_a_pass_that_fits_or_one_rollout(tokens: int, longest: int, gib: int) -> None:
    tried, device = tokens, gib * GIB
    for _ in range(tokens):
        seen = max(tried // longest, 1) * longest
        fewer = fewer_tokens(settings(tried, longest=longest), phases(seen), device)
        if fewer is None:
            break
        assert fewer < tried
        tried = fewer
    assert seen == longest or phases(seen)[1].num_bytes <= room_for_phases(device)
