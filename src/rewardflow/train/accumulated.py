"""Sums of everything but the gradient since the last update.

Always true: everything here is a sum or a maximum in float64, so the cut of an update into passes and ranks does not
matter; nothing waits for the device until the sums are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rewardflow.algo import aggregation
from rewardflow.settings.run_settings import Aggregation
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.loss_terms import PassSums
from rewardflow.train.packing import TokenRow, left_mask
from rewardflow.train.staleness_sums import loss_measures, off_policy_measures


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSums:
    """Sums over all passes and ranks. `metrics` are divided already, and empty if no row went through the model."""

    denominator: float
    num_sequences: int
    num_tokens: int
    num_passes: int
    metrics: Mapping[str, float]
    by_staleness: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Accumulated:
    """The sums of one rank for one update."""

    denominator: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    num_sequences: int = 0
    num_tokens: int = 0
    passes: list[PassSums] = field(default_factory=list)

    def count(self, scored: Sequence[TokenRow], rule: Aggregation, max_response_tokens: int) -> None:
        """Adds every scored row to the denominator, whether or not it needs a pass."""
        mask_BT = left_mask(torch.tensor([len(row.sampled) for row in scored], dtype=torch.long))
        is_scored_B = torch.ones(len(scored), dtype=torch.bool)
        self.denominator += aggregation.denominator(rule, mask_BT, is_scored_B, max_response_tokens)
        self.num_sequences += len(scored)
        self.num_tokens += int(mask_BT.sum())

    def add(self, sums: PassSums) -> None:
        """Adds one pass. All ranks make the same number of passes, with the same names in the same order."""
        self.passes.append(sums)

    def summed(self, ranks: Ranks, divisor: float = 1.0) -> UpdateSums:
        """Sums over ranks, and divides the denominator by `divisor`."""
        names = self._names()
        counts = torch.tensor([self.num_sequences, self.num_tokens, len(self.passes)], dtype=torch.float64)
        sums = ranks.sum(torch.cat([self.denominator[None], counts, self._pass_sums(names)])).tolist()
        denominator, num_sequences, num_tokens, num_passes = sums[:4]
        denominator /= divisor
        tables = self._tables(ranks)
        return UpdateSums(
            denominator=denominator,
            num_sequences=int(num_sequences),
            num_tokens=int(num_tokens),
            num_passes=int(num_passes),
            metrics={
                **_divided(dict(zip(names, sums[4:], strict=True)), denominator),
                **off_policy_measures(*tables.total()),
            },
            by_staleness=tables.measures(),
        )

    def _names(self) -> list[tuple[str, str]]:
        kinds = ("weighted", "counted") if self.passes else ()
        return [(kind, name) for kind in kinds for name in getattr(self.passes[0], kind)]

    def _pass_sums(self, names: Sequence[tuple[str, str]]) -> Tensor:
        """Sums over passes for each name, in one transfer from the device."""
        if not names:
            return torch.empty(0, dtype=torch.float64)
        by_pass = [torch.stack([getattr(sums, kind)[name] for kind, name in names]) for sums in self.passes]
        return torch.stack(by_pass).sum(0).cpu()

    def _tables(self, ranks: Ranks) -> _Tables:
        """Returns sums by staleness. Ranks have different rows, so they agree on the number of table rows.

        Names are those of any pass: they follow from the settings.
        """
        entries = [entry for sums in self.passes for entry in sums.by_staleness.items()]
        num_lines = ranks.most(max((staleness for staleness, _ in entries), default=-1) + 1)
        if not num_lines:
            return _Tables()
        first = entries[0][1]
        sums_SN = torch.zeros(num_lines, len(first.sums), dtype=torch.float64)
        maxima_SN = torch.full((num_lines, len(first.maxima)), -torch.inf, dtype=torch.float64)
        of_entries_EN = torch.stack(
            [torch.stack([*entry.sums.values(), *entry.maxima.values()]) for _, entry in entries]
        )
        for (staleness, _), line_N in zip(entries, of_entries_EN.cpu(), strict=True):
            sums_SN[staleness] += line_N[: len(first.sums)]
            maxima_SN[staleness] = torch.maximum(maxima_SN[staleness], line_N[len(first.sums) :])
        return _Tables(
            sums=[dict(zip(first.sums, line, strict=True)) for line in ranks.sum(sums_SN).tolist()],
            maxima=[dict(zip(first.maxima, line, strict=True)) for line in ranks.maximum(maxima_SN).tolist()],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """Sums and maxima by name, a row for each staleness from 0 on."""

    sums: Sequence[Mapping[str, float]] = ()
    maxima: Sequence[Mapping[str, float]] = ()

    def total(self) -> tuple[dict[str, float], dict[str, float]]:
        names = (self.sums[0], self.maxima[0]) if self.sums else ((), ())
        return (
            {name: sum(line[name] for line in self.sums) for name in names[0]},
            {name: max(line[name] for line in self.maxima) for name in names[1]},
        )

    def measures(self) -> dict[int, dict[str, float]]:
        """Of each staleness that has tokens."""
        measured = [
            {**loss_measures(sums), **off_policy_measures(sums, maxima)}
            for sums, maxima in zip(self.sums, self.maxima, strict=True)
        ]
        return {staleness: found for staleness, found in enumerate(measured) if found["trained_tokens"]}


def _divided(sums: Mapping[tuple[str, str], float], denominator: float) -> dict[str, float]:
    """Divides terms of the loss as the loss does, the rest by the tokens that went through the model."""
    trained_tokens = sums.get(("counted", "tokens"), 0.0)
    metrics = {"trained_tokens": trained_tokens}
    for (kind, name), total in sums.items():
        if name != "tokens":
            divisor = denominator if kind == "weighted" else trained_tokens
            metrics[name] = total / divisor if divisor else 0.0
    return metrics
