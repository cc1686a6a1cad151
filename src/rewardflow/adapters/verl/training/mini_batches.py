"""Cuts a step's judged groups into the mini-batches of its optimizer steps.

Always true: a mini-batch holds whole groups, in the order given, without rows that lack a verdict; a group with fewer
verdicts than `min_group` has no row in it; every group is recorded once, as trained or as dropped; the token shares of
a step's mini-batches have a mean of 1, and depend on verdicts only in the order of completion; the shares of a
mini-batch's updates add up to its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.adapters.verl.accounting.step_metrics import TOO_FEW_VERDICTS, VerlStepRecord
from rewardflow.adapters.verl.verl_rows import Row, num_tokens, session_of

AGGREGATION = "token-mean"  # verl's `loss_agg_mode` that divides by the mini-batch's own tokens


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What one optimizer step trains on. `token_share` is relative to the step's mean mini-batch."""

    rows: list[Row]
    token_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatchCutter:
    """Cuts the groups of one step. `rows` are all rows that were generated for it, by group."""

    rows: Mapping[str, list[Row]]
    mean_tokens: float
    groups_per_update: int
    min_group: int
    record: VerlStepRecord

    @classmethod
    def of_step(
        cls,
        rows: Mapping[str, list[Row]],
        *,
        mini_batches: int,
        groups_per_update: int,
        min_group: int,
        record: VerlStepRecord,
    ) -> MiniBatchCutter:
        """`mini_batches` is 0 if a filter kept no group."""
        mean_tokens = sum(num_tokens(group) for group in rows.values()) / max(1, mini_batches)
        return cls(
            rows=rows,
            mean_tokens=mean_tokens,
            groups_per_update=groups_per_update,
            min_group=min_group,
            record=record,
        )

    def keys(self, reports: Sequence[GroupReport]) -> list[str]:
        """Returns the keys of all rows of these groups."""
        return [key for report in reports for key, _ in self._group(report)]

    def cut(self, reports: Sequence[GroupReport], judged: AbstractSet[str]) -> list[MiniBatch]:
        """Cuts these groups. `judged` has the keys of the rows with a verdict."""
        shares = [
            reports[start : start + self.groups_per_update] for start in range(0, len(reports), self.groups_per_update)
        ]
        mini_batches = [MiniBatch(self._trained(share, judged), self._token_share(share)) for share in shares]
        return [mini_batch for mini_batch in mini_batches if mini_batch.rows]

    def _trained(self, reports: Sequence[GroupReport], judged: AbstractSet[str]) -> list[Row]:
        return [row for report in reports for row in self._trained_group(report, judged)]

    def _trained_group(self, report: GroupReport, judged: AbstractSet[str]) -> list[Row]:
        """Returns the group's rows with a verdict; none if fewer than `min_group` rollouts have one."""
        group = self._group(report)
        not_generated = report.size - len({session_of(key) for key, _ in group}) if report.size else 0
        scored = [(key, tag) for key, tag in group if key in judged]
        has_enough = len({session_of(key) for key, _ in scored}) >= self.min_group
        dropped = None if has_enough else TOO_FEW_VERDICTS
        self.record.group_left(report, not_generated=not_generated, dropped=dropped)
        return scored if has_enough else []

    def _token_share(self, reports: Sequence[GroupReport]) -> float:
        """Returns the tokens generated for these groups as a multiple of the step's mean mini-batch."""
        own = sum(num_tokens(self._group(report)) for report in reports)
        return own / self.mean_tokens if own else 1.0

    def _group(self, report: GroupReport) -> list[Row]:
        return self.rows.get(report.uid, [])


def shares_of_updates(rows: Sequence[Row], share: float, *, per_update: int, ranks: int) -> list[float]:
    """Returns the token share of each update that verl makes of a mini-batch with this share.

    verl makes one of every `per_update` rows, evenly from all ranks. So it makes several of a mini-batch whose rollouts
    have several sequences each. `rows` are in verl's order, by ranks first, with the rows that fill the mini-batch up.
    """
    count = max(1, len(rows) // per_update)
    own, each = len(rows) // ranks, per_update // ranks
    tokens = [
        sum(
            num_tokens([row for row in rows[start : start + each] if not row[1].get("is_padding")])
            for start in range(update * each, len(rows), own)
        )
        for update in range(count)
    ]
    total = sum(tokens)
    return [share * (part / total) if part else share / count for part in tokens]
