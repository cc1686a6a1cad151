"""Reads a run's rollouts with their scores from its journal, to judge them again.

Always true: a place of a run has one rollout: the last scored verdict of the chosen reward counts. Every group that is
returned is numbered from 0 without gaps, also if some of its verdicts failed, because a judge takes complete groups.
Validations and probes are left out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.flow.validation.validation_plan import VALIDATION_SOURCE
from rewardflow.judging.rejudging import JudgedBefore
from rewardflow.reward.journal.reader import JournalReader, JournalRow
from rewardflow.types import Rollout

PROBE_SOURCE = "probe"  # the source in totals, and the start of group ids, of answers that a judge is probed with

_TEXTS = ("prompt", "messages", "response", "ground_truth", "data_source", "extra_info")


def read_judged_rollouts(
    journal: Path, *, run: str | None = None, component: str | None = None, steps: range | None = None
) -> list[JudgedBefore]:
    """Reads the scored rollouts. `component` names the reward whose verdicts count; one run has mostly one."""
    with JournalReader(journal) as reader:
        rows = [row for row in reader.rows(run=run, scored_only=True) if steps is None or row.step in steps]
    rows = [row for row in rows if not _is_beside_training(row)]
    names = sorted({row.reward for row in rows})
    if component is not None and component not in names:
        raise InvalidInput(f"--component must be one of the run's rewards ({', '.join(names)}), got {component!r}")
    if component is None and len(names) > 1:
        raise InvalidInput(
            f"the run sums several rewards ({', '.join(names)}): name the one to compare with --component"
        )
    chosen = [row for row in rows if component in (None, row.reward)]
    if not chosen:
        raise InvalidInput(f"there is no scored verdict to judge again in {journal}; wait for one, or check --steps")
    return _regrouped({(row.step, row.group_id, row.index): row for row in chosen}.values())


def sampled_groups(judged: Sequence[JudgedBefore], count: int) -> list[JudgedBefore]:
    """Returns `count` whole groups, drawn by a hash: the same groups in every session."""
    if count < 1:
        raise InvalidInput(f"--groups must be at least 1, got {count}")

    def draw(place: tuple[int, str]) -> bytes:
        return hashlib.blake2b(f"{place[0]}\0{place[1]}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

    places = {(one.rollout.step, one.rollout.group_id) for one in judged}
    kept = set(sorted(places, key=draw)[:count])
    return [one for one in judged if (one.rollout.step, one.rollout.group_id) in kept]


def _regrouped(rows: Iterable[JournalRow]) -> list[JudgedBefore]:
    groups: defaultdict[tuple[int, str], list[JournalRow]] = defaultdict(list)
    for row in rows:
        groups[row.step, row.group_id].append(row)
    judged = []
    for (step, group_id), members in sorted(groups.items()):
        for index, row in enumerate(sorted(members, key=lambda one: one.index)):
            rollout = _rollout(row.rollout, group_id)
            if row.value is not None:
                placed = replace(rollout, step=step, index=index, group_size=len(members))
                judged.append(JudgedBefore(placed, row.value))
    return judged


def _rollout(texts: Mapping[str, Any], group_id: str) -> Rollout:
    if not isinstance(texts.get("response"), str):
        raise InvalidInput("the journal must hold the texts of rollouts, and was written with store: hash")
    known = {name: texts[name] for name in _TEXTS if texts.get(name) is not None}
    return Rollout(group_id=group_id, **known)


def _is_beside_training(row: JournalRow) -> bool:
    return row.group_id.startswith((VALIDATION_SOURCE, f"{PROBE_SOURCE}-"))
