"""Reads verl's rows: whose a row is, by its key, and the `Rollout` that a row holds.

Always true: the group is verl's `uid` and the index in it verl's session, and neither depends on any text; a row
without a session, as trainers other than v1 have them, is a group of its own; the user's function sees in `extra_info`
what verl would have shown it, and the agent adds `group_uid` and `group_size`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.types import Rollout

# The agent loop of trainer mode `rewardflow` sets it, because it knows; elsewhere the configuration's number counts.
GROUP_SIZE_FIELD = "rewardflow_group_size"
POSITION_FIELD = "rewardflow_position"  # the place of a prompt in its step: groups are judged in this order
SESSION_FIELD = "session_id"

Row = tuple[str, dict[str, Any]]  # the key of a stored row, and its tags


def row_key(uid: str, session: int, number: int) -> str:
    """Returns verl's name of a row: the group, the rollout in it, and the sequence of the rollout."""
    return f"{uid}_{session}_{number}"


def uid_of(key: str) -> str:
    return key.rsplit("_", 2)[0]


def session_of(key: str) -> str:
    return key.rsplit("_", 2)[1]


def num_tokens(rows: Sequence[Row]) -> int:
    """Counts the tokens of the responses."""
    return sum(int(tag["response_len"]) for _, tag in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """`data_source_key` is verl's `data.reward_fn_key`; `group_size` is its `rollout.n`."""

    data_source_key: str = "data_source"
    group_size: int = 1

    def rollout(self, fields: Mapping[str, Any], *, prompt: str, response: str) -> Rollout:
        """Makes a rollout of the fields that verl carries beside the tensors."""
        extra_fields = _mapping(fields.get("tool_extra_fields"))
        group_id, index, group_size = self._place(fields)
        return Rollout(
            group_id=group_id,
            index=index,
            group_size=group_size,
            position=int(fields.get(POSITION_FIELD) or 0),
            prompt=prompt,
            messages=_messages(fields.get("raw_prompt")),
            response=response,
            ground_truth=_mapping(fields.get("reward_model")).get("ground_truth"),
            data_source=str(fields.get(self.data_source_key, "")),
            extra_info={
                **_mapping(fields.get("extra_info")),
                **extra_fields,
                "num_turns": fields.get("__num_turns__"),
                "rollout_reward_scores": fields.get("reward_scores", {}),
            },
            step=int(fields.get("global_steps", 0)),
            policy_version=extra_fields.get("max_global_steps"),
        )

    def _place(self, fields: Mapping[str, Any]) -> tuple[str, int, int]:
        """Returns the row's group, its index there and the group's size."""
        if fields.get(SESSION_FIELD) is None:
            return f"{fields.get('uid', 'row')}-{uuid.uuid4().hex}", 0, 1
        index = int(fields[SESSION_FIELD])
        return str(fields["uid"]), index, max(int(fields.get(GROUP_SIZE_FIELD) or self.group_size), index + 1)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _messages(value: Any) -> list[dict[str, Any]]:
    return (
        [dict(message) for message in value] if value is not None and not isinstance(value, str | os.PathLike) else []
    )
