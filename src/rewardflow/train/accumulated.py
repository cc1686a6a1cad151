"""What has accumulated since the last update, besides the gradient itself.

Always true: everything here is a sum in float64, so it does not matter how an update was cut into passes and ranks;
nothing waits for the device until the sums are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rewardflow.algo import aggregation
from rewardflow.config.tree import Aggregation
from rewardflow.train.fsdp2 import Ranks
from rewardflow.train.loss_terms import PassSums
from rewardflow.train.packing import Row, left_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSums:
    """Over all passes and ranks. `metrics` are divided already, and empty if nothing went through the model."""

    denominator: float
    num_sequences: int
    num_tokens: int
    num_passes: int
    metrics: Mapping[str, float]


@dataclass(slots=True)
class Accumulated:
    """Of one rank, for one update."""

    denominator: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    num_sequences: int = 0
    num_tokens: int = 0
    passes: list[PassSums] = field(default_factory=list)

    def count(self, scored: Sequence[Row], rule: Aggregation, max_response_tokens: int) -> None:
        """Every scored row has its share of the denominator, whether or not it needs a pass."""
        mask_BT = left_mask(torch.tensor([len(row.sampled) for row in scored], dtype=torch.long))
        is_scored_B = torch.ones(len(scored), dtype=torch.bool)
        self.denominator += aggregation.denominator(rule, mask_BT, is_scored_B, max_response_tokens)
        self.num_sequences += len(scored)
        self.num_tokens += int(mask_BT.sum())

    def add(self, sums: PassSums) -> None:
        """One pass. All ranks make the same number of them, so all have the same names in the same order."""
        self.passes.append(sums)

    def summed(self, ranks: Ranks) -> UpdateSums:
        names = self._names()
        counts = torch.tensor([self.num_sequences, self.num_tokens, len(self.passes)], dtype=torch.float64)
        sums = ranks.sum(torch.cat([self.denominator[None], counts, self._pass_sums(names)])).tolist()
        denominator, num_sequences, num_tokens, num_passes = sums[:4]
        return UpdateSums(
            denominator=denominator,
            num_sequences=int(num_sequences),
            num_tokens=int(num_tokens),
            num_passes=int(num_passes),
            metrics=_divided(dict(zip(names, sums[4:], strict=True)), denominator),
        )

    def _names(self) -> list[tuple[str, str]]:
        kinds = ("weighted", "counted") if self.passes else ()
        return [(kind, name) for kind in kinds for name in getattr(self.passes[0], kind)]

    def _pass_sums(self, names: Sequence[tuple[str, str]]) -> Tensor:
        """The sum over passes for each name, in one transfer from the device."""
        if not names:
            return torch.empty(0, dtype=torch.float64)
        by_pass = [torch.stack([getattr(sums, kind)[name] for kind, name in names]) for sums in self.passes]
        return torch.stack(by_pass).sum(0).cpu()


def _divided(sums: Mapping[tuple[str, str], float], denominator: float) -> dict[str, float]:
    """Terms of the loss as the loss divides them, the rest as means over the tokens that went through the model."""
    trained_tokens = sums.get(("counted", "tokens"), 0.0)
    metrics = {"trained_tokens": trained_tokens}
    for (kind, name), total in sums.items():
        if name != "tokens":
            divisor = denominator if kind == "weighted" else trained_tokens
            metrics[name] = total / divisor if divisor else 0.0
    return metrics
