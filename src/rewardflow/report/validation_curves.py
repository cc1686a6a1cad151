"""Lists the figures of validations that are drawn, and how.

Always true: a figure that this release does not know is drawn too, after the known ones; each data source has its own
charts, after the chart of all sources together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rewardflow.report.curves import Curve, CurveLine
from rewardflow.report.steps import StepRow

_PASS: Final = re.compile(r"pass@\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Figures that are drawn together: one by its whole name, or all with the same prefix."""

    title: str
    unit: str = ""
    note: str = ""
    from_zero: bool = False
    hides_zeros: bool = False


_SCORE: Final = _Family(title="Score", note="mean over scored rollouts")
_PASSED: Final = _Family(title="Passed", unit="%", from_zero=True)
_COMPONENTS: Final = _Family(title="Components", note="mean of each")
_LENGTH: Final = _Family(title="Response length", unit="tokens")
_CUT: Final = _Family(title="Responses cut off", unit="%", note="by the limit of tokens", from_zero=True)
_FAILED: Final = _Family(title="Failed verdicts", from_zero=True, hides_zeros=True)
_BY_NAME: Final = {
    "score_mean": (_SCORE, "Score"),
    "pass_share": (_PASSED, "of all responses"),
    "response_tokens_mean": (_LENGTH, "Response length"),
    "truncated_share": (_CUT, "Responses cut off"),
}
_BY_BEGINNING: Final = {"component_means": _COMPONENTS, "failed": _FAILED}
_ORDER: Final = (_SCORE, _PASSED, _COMPONENTS, _LENGTH, _CUT, _FAILED)
_SAID_ELSEWHERE: Final = frozenset({"cost_usd"})  # under cost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """The parts of a figure's whole name. Data sources and components may have slashes in their names."""

    name: str
    source: str  # empty for all sources together
    family: _Family | None
    line: str


def validation_curves(steps: Sequence[StepRow]) -> list[Curve]:
    measured = [one for one in _all_measured(steps) if one.family is not None]
    sources = sorted({one.source for one in measured})
    return [
        Curve(
            title=f"{family.title}: {source}" if source else family.title,
            lines=lines,
            unit=family.unit,
            note=family.note,
            from_zero=family.from_zero,
            hides_zeros=family.hides_zeros,
            is_sparse=True,
        )
        for source in sources
        for family in _ORDER
        if (lines := [_line(one) for one in measured if (one.source, one.family) == (source, family)])
    ]


def other_validation_curves(steps: Sequence[StepRow]) -> list[Curve]:
    """Makes curves of counts and of all other figures."""
    return [
        Curve(title=one.name, lines=[_line(one)], is_sparse=True)
        for one in _all_measured(steps)
        if one.family is None and one.line not in _SAID_ELSEWHERE
    ]


def _all_measured(steps: Sequence[StepRow]) -> Iterator[_Measured]:
    for name in dict.fromkeys(name for row in steps for name in row.measured):
        yield _taken_apart(name)


def _taken_apart(name: str) -> _Measured:
    for beginning, beginning_family in _BY_BEGINNING.items():
        source, found, line = f"/{name}".partition(f"/{beginning}/")
        if found:
            shown = line.replace("_", " ") if beginning_family is _FAILED else line
            return _Measured(name=name, source=source.removeprefix("/"), family=beginning_family, line=shown)
    source, _, last = name.rpartition("/")
    if _PASS.fullmatch(last):
        return _Measured(name=name, source=source, family=_PASSED, line=last)
    family, line = _BY_NAME.get(last, (None, last))
    return _Measured(name=name, source=source, family=family, line=line)


def _line(one: _Measured) -> CurveLine:
    """Reads a figure; a missing kind of failure is 0, because only kinds that happened are written."""
    absent = 0.0 if one.family is _FAILED else None
    return CurveLine(name=one.line, of=lambda row: row.measured.get(one.name, absent) if row.measured else None)
