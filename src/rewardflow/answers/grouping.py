"""Puts rows into the groups that the agent judges and delivers.

Always true: every resulting group is complete: its indices are 0 to group_size - 1, each once. A row that contradicts
its group becomes a `BadRow`; the agent judges the rest as a smaller group.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rewardflow.answers.answer_row import Answer, BadRow, Draft
from rewardflow.errors import InvalidInput
from rewardflow.types import Rollout

logger = logging.getLogger(__name__)


def grouped(drafts: Sequence[Draft | BadRow]) -> Iterator[Answer | BadRow]:
    """Returns the same rows in the same order, each with its index and the size of its group."""
    members: defaultdict[tuple[int, str], list[Draft]] = defaultdict(list)
    for draft in drafts:
        if isinstance(draft, Draft):
            members[draft.step, draft.group_id].append(draft)
    groups = {key: _fit(rows) for key, rows in members.items()}
    _tell_lacking(list(groups.values()))
    for draft in drafts:
        if isinstance(draft, BadRow):
            yield draft
        else:
            yield groups[draft.step, draft.group_id].row(draft)


@dataclass(slots=True)
class _Group:
    told_size: int | None
    by_index: dict[int, Draft] = field(default_factory=dict)
    complaints: dict[int, str] = field(default_factory=dict)  # by line
    index_by_line: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.by_index)

    def row(self, draft: Draft) -> Answer | BadRow:
        if draft.line in self.complaints:
            return BadRow(draft.line, draft.columns, self.complaints[draft.line])
        try:
            rollout = Rollout(
                group_id=draft.group_id,
                index=self.index_by_line[draft.line],
                group_size=self.size,
                step=draft.step,
                **draft.fields,
            )
        except InvalidInput as error:
            return BadRow(draft.line, draft.columns, str(error))
        return Answer(draft.line, draft.columns, rollout)


def _fit(drafts: Sequence[Draft]) -> _Group:
    group = _Group(next((draft.group_size for draft in drafts if draft.group_size is not None), None))
    is_numbered = any(draft.index is not None for draft in drafts)
    for draft in drafts:
        index = draft.index if is_numbered else group.size
        complaint = _complaint(group, draft, index)
        if complaint is not None or index is None:
            group.complaints[draft.line] = complaint or ""
        else:
            group.by_index[index] = draft
    # Ranks: the indices themselves, unless some are missing.
    for rank, index in enumerate(sorted(group.by_index)):
        group.index_by_line[group.by_index[index].line] = rank
    return group


def _complaint(group: _Group, draft: Draft, index: int | None) -> str | None:
    where = f"in group {draft.group_id!r} of step {draft.step}"
    if index is None:
        return f"all rows of a group must have an index or none, got one without {where}"
    if draft.group_size not in (None, group.told_size):
        return f"a group must have one group_size, got {group.told_size} and {draft.group_size} {where}"
    if group.told_size is not None and index >= group.told_size:
        return f"index must lie in [0, group_size), got index={index}, group_size={group.told_size} {where}"
    if index in group.by_index:
        return f"an index may appear once, got index={index} again {where} (first: {group.by_index[index].line})"
    return None


def _tell_lacking(groups: Sequence[_Group]) -> None:
    lacking = [group for group in groups if group.told_size is not None and 0 < group.size < group.told_size]
    if lacking:
        first = next(iter(lacking[0].by_index.values()))
        logger.warning(
            "%d groups lack answers and are judged as smaller groups; the first is %r with %d of %d",
            len(lacking),
            first.group_id,
            lacking[0].size,
            lacking[0].told_size,
        )
