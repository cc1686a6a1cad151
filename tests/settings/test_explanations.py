"""Explanations are the comments of the source."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rewardflow.flow.schedule import Schedule
from rewardflow.settings.explanations import explanations


@dataclass
class Example:
    """Not this."""

    behind: int = 0  # stands behind
    # stands above,
    # in two lines
    above: int = 0

    # not this: an empty line is between

    bare: str = "# not a comment"
    several: tuple[int, ...] = (
        1,  # not this
        2,
    )  # at the end

    def method(self) -> None:
        local: int = 0  # not this
        del local


def test_a_field_is_explained_by_the_comment_behind_or_right_above_it() -> None:
    assert explanations(Example) == {
        "behind": "stands behind",
        "above": "stands above, in two lines",
        "bare": "",
        "several": "at the end",
    }


def test_every_field_of_a_schedule_is_explained() -> None:
    assert list(explanations(Schedule)) == [field.name for field in fields(Schedule)]
    assert all(explanations(Schedule).values())
