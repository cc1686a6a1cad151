"""Steps that await verdicts, there and back."""

from __future__ import annotations

import dataclasses
import math
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow.checkpoint.open_rollouts import LINES_FILE, TENSORS_FILE, read_rollouts, write_rollouts
from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.flow.records import GroupRequest, Precomputed, PreparedRollout, Prompt, SavedStep
from rewardflow.reward.journal.verdict_keys import verdict_keys
from rewardflow.types import Rollout

ODD = object()  # nothing that JSON could say
PROMPTS = [
    Prompt(uid="0", text="1+1="),
    Prompt(uid="1", messages=({"role": "user", "content": "?"},), ground_truth=ODD, extra_info={"level": 3, "id": ODD}),
]


def prompt_of(uid: str) -> Prompt:
    return PROMPTS[int(uid)]


def prepared_rollout(request: GroupRequest, index: int, **fields: Any) -> PreparedRollout:
    prompt = request.prompt
    precomputed = fields.pop("precomputed", Precomputed())
    defaults: dict[str, Any] = {
        "group_id": request.group_id,
        "index": index,
        "group_size": request.group_size,
        "step": request.step,
        "prompt": prompt.text,
        "messages": prompt.messages,
        "ground_truth": prompt.ground_truth,
        "data_source": prompt.data_source,
        "extra_info": prompt.extra_info,
        "response": "two",
        "token_ids": array("i", [5, 6, 7]),
        "response_mask": array("b", [0, 1, 1]),
        "log_probs": array("f", [0.0, -0.1, -2.5]),
        "policy_version": 3,
    }
    return PreparedRollout(rollout=Rollout(**{**defaults, **fields}), precomputed=precomputed)


def a_step(step: int, *fields: dict[str, Any], uid: str = "0") -> SavedStep:
    request = GroupRequest(number=7 * step, step=step, prompt=prompt_of(uid), group_size=max(1, len(fields)))
    rollouts = tuple(prepared_rollout(request, index, **one) for index, one in enumerate(fields))
    return SavedStep(step=step, requests=(request,), rollouts=rollouts)


def there_and_back(folder: Path, *steps: SavedStep) -> tuple[SavedStep, ...]:
    write_rollouts(steps, folder)
    return read_rollouts(folder, prompt_of)


def bits(values: Any) -> Any:
    return None if values is None else (type(values), values.tobytes() if isinstance(values, array) else list(values))


def assert_same(found: PreparedRollout, expected: PreparedRollout) -> None:
    for field in dataclasses.fields(Rollout):
        mine, theirs = getattr(found.rollout, field.name), getattr(expected.rollout, field.name)
        if field.name in ("token_ids", "response_mask", "log_probs", "token_versions"):
            assert bits(mine) == bits(theirs)
        else:
            assert mine == theirs
    for name in ("old", "reference", "behaviour"):
        mine, theirs = getattr(found.precomputed, name), getattr(expected.precomputed, name)
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    assert verdict_keys("judge", [found.rollout], run="r") == verdict_keys("judge", [expected.rollout], run="r")


def test_steps_come_back_with_requests_rollouts_and_log_probs(tmp_path: Path) -> None:
    precomputed = Precomputed(reference=torch.tensor([-1.0, math.nan]), behaviour=torch.tensor([-0.5, -1e-30]))
    steps = (
        a_step(4, {"precomputed": precomputed}, {"response": "", "token_ids": array("i"), "log_probs": array("f")}),
        a_step(5, {"extra_info": {"level": 3, "id": ODD, "truncated": True}}, {"ground_truth": "own"}, uid="1"),
        a_step(6),
        a_step(7, {"token_versions": array("i", [0, 3, 4])}),
    )
    found = there_and_back(tmp_path, *steps)
    assert [one.step for one in found] == [4, 5, 6, 7]
    for mine, theirs in zip(found, steps, strict=True):
        assert mine.requests == theirs.requests
        for one, other in zip(mine.rollouts, theirs.rollouts, strict=True):
            assert_same(one, other)
    assert found[1].rollouts[0].rollout.ground_truth is ODD  # the data's own object


def test_a_baseline_comes_back_as_one_and_so_do_values(tmp_path: Path) -> None:
    request = GroupRequest(number=3, step=1, prompt=prompt_of("1"), group_size=2, has_baseline=True)
    values = torch.tensor([0.25, -1.5])
    rollouts = (
        prepared_rollout(request, 0, extra_info=request.extra_info_of(0), precomputed=Precomputed(values=values)),
        prepared_rollout(request, 1, extra_info=request.extra_info_of(1)),
    )
    (found,) = there_and_back(tmp_path, SavedStep(step=1, requests=(request,), rollouts=rollouts))
    assert found.requests == (request,)
    assert [one.rollout.extra_info["greedy"] for one in found.rollouts] == [False, True]
    assert torch.equal(found.rollouts[0].precomputed.values, values)
    assert found.rollouts[1].precomputed.values is None


def test_no_steps_are_no_steps(tmp_path: Path) -> None:
    assert there_and_back(tmp_path) == ()


@settings(max_examples=40)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "response": st.text(st.characters(codec=None), max_size=20),
                "token_ids": st.lists(st.integers(0, 2**31 - 1), max_size=9).map(lambda ids: array("i", ids)),
                "log_probs": st.none() | st.lists(st.floats(width=32), max_size=9).map(lambda some: array("f", some)),
                "policy_version": st.none() | st.integers(0, 10**6),
                "extra_info": st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=5)),
            }
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from("01"),
)
def test_every_rollout_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, fields: list[dict[str, Any]], uid: str
) -> None:
    step = a_step(1, *fields, uid=uid)
    (found,) = there_and_back(tmp_path_factory.mktemp("rollouts"), step)
    for one, other in zip(found.rollouts, step.rollouts, strict=True):
        assert_same(one, other)


def test_lists_of_numbers_become_arrays_that_hold_the_same(tmp_path: Path) -> None:
    (found,) = there_and_back(tmp_path, a_step(1, {"token_ids": [2**40, 1], "log_probs": [0.1, -1 / 3]}))
    rollout = found.rollouts[0].rollout
    assert (list(rollout.token_ids or ()), list(rollout.log_probs or ())) == ([2**40, 1], [0.1, -1 / 3])


def test_what_json_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be plain JSON"):
        write_rollouts([a_step(1, {"extra_info": {"new": ODD}})], tmp_path)


@pytest.mark.parametrize("precomputed", [[-1.0], torch.zeros(2, dtype=torch.float64), torch.zeros(2, 2)])
def test_log_probs_of_another_kind_are_refused(tmp_path: Path, precomputed: Any) -> None:
    with pytest.raises(InvalidInput, match="old log-probs must be a float32 tensor"):
        write_rollouts([a_step(1, {"precomputed": Precomputed(old=precomputed)})], tmp_path)


@pytest.mark.parametrize(
    ("file", "contents"),
    [(LINES_FILE, b'{"kind": "rollout"}\n'), (LINES_FILE, b"{"), (TENSORS_FILE, b"nonsense")],
)
def test_files_that_say_something_else_are_told(tmp_path: Path, file: str, contents: bytes) -> None:
    write_rollouts([a_step(1, {})], tmp_path)
    (tmp_path / file).write_bytes(contents)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_rollouts(tmp_path, prompt_of)
