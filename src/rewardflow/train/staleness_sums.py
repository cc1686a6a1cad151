"""Measures how far the policy in training is from the one that generated, in one pass, by staleness.

Always true: everything is a float64 sum or maximum over the tokens that went through the model, without gradient, so
passes and ranks add up, by name; names follow from the settings and not from the rows. Staleness is the step's number
minus the version that generated; a rollout without a version has a staleness of 0.

Two comparisons: `behaviour` compares the present policy with the one that generated, by the log-probs that represent
it; `engine` compares the engine's log-probs with the trainer's: under the same weights where the trainer computed them
while it had those weights or where the staleness is 0, else under the weights before the step's first update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.diagnostics import prob_diff_measures, prob_diff_sums, ratio_measures, ratio_sums

_BEHAVIOUR, _ENGINE, _LOSS = "behaviour.", "engine.", "loss."


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Log-probs of one pass, [B, T]. None where a rollout came without the engine's."""

    present_BT: Tensor
    behaviour_BT: Tensor | None
    trainer_BT: Tensor  # to hold against the engine's
    engine_BT: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessSums:
    """Sums of the rows of one staleness in one pass."""

    sums: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]


def staleness_sums(compared: Compared, loss_sums: Mapping[str, Tensor], mask_BT: Tensor) -> StalenessSums:
    """Sums by staleness. `loss_sums` are sums over the same tokens, one of them called `tokens`."""
    present_BT, trainer_BT = compared.present_BT.detach(), compared.trainer_BT.detach()
    ratios = ratio_sums(present_BT, *_base(present_BT, compared.behaviour_BT, mask_BT))
    differences = prob_diff_sums(trainer_BT, *_base(trainer_BT, compared.engine_BT, mask_BT))
    return StalenessSums(
        sums={
            **{_LOSS + name: total.double() for name, total in loss_sums.items()},
            **_named(_BEHAVIOUR, ratios.sums),
            **_named(_ENGINE, differences.sums),
        },
        maxima={**_named(_BEHAVIOUR, ratios.maxima), **_named(_ENGINE, differences.maxima)},
    )


def off_policy_measures(sums: Mapping[str, float], maxima: Mapping[str, float]) -> dict[str, float]:
    """Returns the results of both comparisons by metric name; nothing for one that was impossible."""
    ratios = ratio_measures(_under(_BEHAVIOUR, sums), _under(_BEHAVIOUR, maxima))
    differences = prob_diff_measures(_under(_ENGINE, sums), _under(_ENGINE, maxima))
    return {
        **{name.replace("prob_diff", "engine_diff"): value for name, value in differences.items()},
        **{name if name.endswith("_share") else f"behaviour_{name}": value for name, value in ratios.items()},
    }


def loss_measures(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns means over the tokens of the loss's sums."""
    totals = _under(_LOSS, sums)
    tokens = totals.pop("tokens", 0.0)
    return {"trained_tokens": tokens, **{name: total / tokens for name, total in totals.items() if tokens}}


def _base(own_BT: Tensor, other_BT: Tensor | None, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """What to compare with, and where: nowhere if there is nothing."""
    return (own_BT, torch.zeros_like(mask_BT)) if other_BT is None else (other_BT, mask_BT)


def _named(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in values.items()}


def _under(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
