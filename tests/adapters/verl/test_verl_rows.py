"""A sample as verl hands it to a reward manager."""

from __future__ import annotations

from typing import Any

from rewardflow.adapters.verl.verl_rows import GROUP_SIZE_FIELD, POSITION_FIELD, RowReader

FIELDS: dict[str, Any] = {
    "uid": "u1",
    "session_id": 2,
    "global_steps": 7,
    "raw_prompt": [{"role": "user", "content": "1+1="}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "data_source": "toy",
    "topic": "sums",
    "extra_info": {"index": 4},
    "tool_extra_fields": {"max_global_steps": 6},
    "__num_turns__": 2,
}


def test_a_row_is_a_rollout_of_its_group() -> None:
    rollout = RowReader(group_size=4).rollout(FIELDS, prompt="p", response="r")
    assert (rollout.group_id, rollout.index, rollout.group_size, rollout.step) == ("u1", 2, 4, 7)
    assert (rollout.prompt, rollout.response, rollout.ground_truth) == ("p", "r", "2")
    assert (rollout.data_source, rollout.policy_version) == ("toy", 6)
    assert rollout.messages == [{"role": "user", "content": "1+1="}]


def test_the_users_function_sees_what_verl_would_have_shown_it() -> None:
    info = RowReader().rollout(FIELDS, prompt="", response="").extra_info
    assert (info["index"], info["num_turns"], info["rollout_reward_scores"]) == (4, 2, {})


def test_the_column_that_names_the_source_can_be_another() -> None:
    assert RowReader(data_source_key="topic").rollout(FIELDS, prompt="", response="").data_source == "sums"


def test_a_group_size_that_the_row_knows_goes_before_the_configurations() -> None:
    fields = {**FIELDS, "session_id": 0, GROUP_SIZE_FIELD: 1}
    assert RowReader(group_size=4).rollout(fields, prompt="", response="").group_size == 1


def test_rows_without_a_session_are_groups_of_their_own() -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "session_id"}
    rollouts = [RowReader(group_size=4).rollout(fields, prompt="p", response="r") for _ in range(4)]
    assert len({rollout.group_id for rollout in rollouts}) == 4
    assert {(rollout.index, rollout.group_size) for rollout in rollouts} == {(0, 1)}


def test_groups_are_judged_in_the_order_of_their_prompts_where_the_row_knows_it() -> None:
    assert RowReader().rollout({**FIELDS, POSITION_FIELD: 3}, prompt="", response="").position == 3
    assert RowReader().rollout(FIELDS, prompt="", response="").position == 0
