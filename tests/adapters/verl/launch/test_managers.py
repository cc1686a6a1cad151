"""Which reward managers give way to ours, and what becomes of DAPO's penalty."""

from __future__ import annotations

import pytest

from rewardflow.adapters.verl.launch.managers import take_over_manager

OURS = "reward.reward_manager.name=rewardflow"
OVERLONG = (
    "+reward.reward_kwargs.max_resp_len=8192",
    "+reward.reward_kwargs.overlong_buffer_cfg.len=4096",
    "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5",
    "+reward.reward_kwargs.overlong_buffer_cfg.log=False",
)


def dapo(*, enable: bool) -> list[str]:
    switch = f"+reward.reward_kwargs.overlong_buffer_cfg.enable={enable}"
    words, _ = take_over_manager(["reward.reward_manager.name=dapo", switch, *OVERLONG, "a=1"])
    return words


@pytest.mark.parametrize("name", ["naive", "dapo", "batch", "prime"])
def test_a_manager_whose_work_ours_does_gives_way_and_the_user_is_told(name: str) -> None:
    words, notes = take_over_manager([f"reward.reward_manager.name={name}", "a=1"])
    assert words == ["a=1", OURS]
    assert [note.after for note in notes] == [OURS]


def test_one_that_does_other_work_stays() -> None:
    words = ["reward.reward_manager.name=gdpo"]
    assert take_over_manager(words) == (words, [])


def test_in_a_mode_of_verls_its_managers_stay_and_those_that_are_gone_do_not() -> None:
    mode = "trainer.v1.trainer_mode=sync"
    assert take_over_manager([mode, "reward.reward_manager.name=dapo"])[1] == []
    assert take_over_manager([mode, "reward.reward_manager.name=batch"])[0] == [mode, OURS]


def test_dapos_penalty_becomes_ours() -> None:
    assert dapo(enable=True) == [
        "++rewardflow.overlong.limit=8192",
        "++rewardflow.overlong.buffer=4096",
        "++rewardflow.overlong.penalty=0.5",
        "a=1",
        OURS,
    ]


def test_a_penalty_that_is_off_becomes_nothing() -> None:
    assert dapo(enable=False) == ["a=1", OURS]
