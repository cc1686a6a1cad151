"""Which settings a resumed run must share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rewardflow.checkpoint.fingerprint import check_same, fingerprint
from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule
from rewardflow.settings.run_settings import (
    ChatSettings,
    CheckpointSettings,
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)

BEFORE = RunSettings(
    reward="judge.py:judge",
    data=DataSettings(task="copy_digits"),
    schedule=Schedule(groups_per_step=4, mini_batches=2),
    steps=10,
    run_dir="runs/a",
)


def compare(**changes: Any) -> None:
    check_same(fingerprint(BEFORE), fingerprint(replace(BEFORE, **changes)), where="runs/a")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"steps": 20},
        {"run_dir": "runs/b"},
        {"limits": {"max_concurrency": 5}},
        {"trainer": TrainerSettings(threads=3)},
        {"trainer": TrainerSettings(micro_batch_tokens=512), "generation": GenerationSettings(max_sequences=8)},
        {"policy": PolicySettings(gradient_checkpointing=True)},
        {"checkpoint": CheckpointSettings(every=1, max_hours=2.0)},
    ],
)
def test_what_only_says_how_fast_how_long_or_where_may_change(changes: dict[str, Any]) -> None:
    compare(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"policy": PolicySettings(tiny_hidden=32)}, "policy.tiny_hidden was 64 and is 32"),
        ({"data": DataSettings(task="arithmetic")}, 'data.task was "copy_digits" and is "arithmetic"'),
        ({"generation": GenerationSettings(top_p=0.5)}, "generation.top_p was 1.0 and is 0.5"),
        (
            {"generation": GenerationSettings(chat=ChatSettings(wrap_text=True))},
            "generation.chat.wrap_text was false and is true",
        ),
        ({"schedule": Schedule(groups_per_step=4)}, "schedule.mini_batches was 2 and is 1"),
        ({"trainer": TrainerSettings(betas=(0.9, 0.95))}, r"trainer.betas was \[0.9, 0.999\] and is \[0.9, 0.95\]"),
    ],
)
def test_what_changes_the_numbers_is_refused_with_then_and_now(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=f"since runs/a {told}"):
        compare(**changes)


def test_a_setting_that_did_not_exist_had_its_default() -> None:
    now = fingerprint(BEFORE)
    absent = ("generation.top_k", "generation.chat")
    then = {name: value for name, value in now.items() if not name.startswith(absent)}
    check_same(then, now, where="")
    with pytest.raises(InvalidInput, match=r"generation.top_k was 0 and is 7"):
        check_same(then, {**now, "generation.top_k": 7}, where="")


def test_what_may_change_may_also_have_been_written_down_by_an_earlier_version() -> None:
    now = fingerprint(BEFORE)
    check_same({**now, "trainer.micro_batch_tokens": 512}, now, where="")


def test_a_setting_that_is_gone_is_told() -> None:
    now = fingerprint(BEFORE)
    with pytest.raises(InvalidInput, match=r"algorithm.magic was 3 and is"):
        check_same({**now, "algorithm.magic": 3}, now, where="")
