"""Reads a run's rollouts from its journal, with the scores that the run trained on, to judge them again.

Always true: a place of a run has one rollout, and its last score counts. The score of a run that sums several rewards
is the sum, from `events.jsonl` beside the journal, unless one of these rewards is chosen. Every group that is
returned is numbered from 0 without gaps, also if some of its verdicts failed, because a judge takes complete groups.
Validations and probes are left out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.flow.validation.validation_plan import VALIDATION_SOURCE
from rewardflow.judging.rejudging import JudgedBefore, Place
from rewardflow.observe.events import VerdictReached
from rewardflow.observe.run_directory import EVENTS_FILE, read_events
from rewardflow.reward.journal.reader import JournalReader, JournalRow
from rewardflow.types import Rollout

PROBE_SOURCE = "probe"  # the source in totals, and the start of group ids, of answers that a judge is probed with

_TEXTS = ("prompt", "messages", "response", "ground_truth", "data_source", "extra_info")


@dataclass(frozen=True, slots=True)
class _ScoredRow:
    """A row of the journal, for its texts, and the score to compare with."""

    row: JournalRow
    score: float | None

    @property
    def place(self) -> Place:
        return self.row.step, self.row.group_id, self.row.index


def read_judged_rollouts(
    journal: Path, *, run: str | None = None, component: str | None = None, steps: range | None = None
) -> list[JudgedBefore]:
    """Reads the scored rollouts. `component` names one reward of a weighted sum, whose own scores then count."""
    with JournalReader(journal) as reader:
        rows = [row for row in reader.rows(run=run, scored_only=True) if steps is None or row.step in steps]
    rows = [row for row in rows if not _is_beside_training(row)]
    names = sorted({row.reward for row in rows})
    if component is not None and component not in names:
        raise InvalidInput(f"--component must be one of the run's rewards ({', '.join(names)}), got {component!r}")
    if component is None and len(names) > 1:
        scored = _with_sums(rows, journal.with_name(EVENTS_FILE), names)
    else:
        scored = [_ScoredRow(row, row.value) for row in rows if component in (None, row.reward)]
    if not scored:
        raise InvalidInput(f"there is no scored verdict to judge again in {journal}; wait for one, or check --steps")
    return _regrouped({one.place: one for one in scored}.values())


def sampled_groups(judged: Sequence[JudgedBefore], count: int) -> list[JudgedBefore]:
    """Returns `count` whole groups, drawn by a hash: the same groups in every session."""
    if count < 1:
        raise InvalidInput(f"--groups must be at least 1, got {count}")

    def draw(place: tuple[int, str]) -> bytes:
        return hashlib.blake2b(f"{place[0]}\0{place[1]}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

    places = {(one.rollout.step, one.rollout.group_id) for one in judged}
    kept = set(sorted(places, key=draw)[:count])
    return [one for one in judged if (one.rollout.step, one.rollout.group_id) in kept]


def _with_sums(rows: Sequence[JournalRow], events: Path, names: Sequence[str]) -> list[_ScoredRow]:
    """Gives each row the score of its rollout: the weighted sum, which the journal does not hold."""
    if not events.exists():
        raise InvalidInput(
            f"the run sums several rewards ({', '.join(names)}), and there is no {events} with the sums: name one "
            "reward with --component"
        )
    sums: dict[Place, float] = {}
    for event in read_events(events):
        if isinstance(event, VerdictReached) and event.value is not None and not event.imputed:
            sums[event.step, event.group_id, event.index] = event.value
    placed = ((row, sums.get((row.step, row.group_id, row.index))) for row in rows)
    return [_ScoredRow(row, score) for row, score in placed if score is not None]


def _regrouped(scored: Iterable[_ScoredRow]) -> list[JudgedBefore]:
    groups: defaultdict[tuple[int, str], list[_ScoredRow]] = defaultdict(list)
    for one in scored:
        groups[one.row.step, one.row.group_id].append(one)
    judged = []
    for (step, group_id), members in sorted(groups.items()):
        for index, one in enumerate(sorted(members, key=lambda member: member.row.index)):
            rollout = _rollout(one.row.rollout, group_id)
            if one.score is not None:
                placed = replace(rollout, step=step, index=index, group_size=len(members))
                judged.append(JudgedBefore(placed, one.score))
    return judged


def _rollout(texts: Mapping[str, Any], group_id: str) -> Rollout:
    if not isinstance(texts.get("response"), str):
        raise InvalidInput("the journal must hold the texts of rollouts, and was written with store: hash")
    known = {name: texts[name] for name in _TEXTS if texts.get(name) is not None}
    return Rollout(group_id=group_id, **known)


def _is_beside_training(row: JournalRow) -> bool:
    return row.group_id.startswith((VALIDATION_SOURCE, f"{PROBE_SOURCE}-"))
