"""The corrections for stale rollouts that `rewardflow bench learning` compares, as changes of the common algorithm.

Always true: a correction changes nothing but what it names; `PLAIN` changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rewardflow.settings.copying_run import ALGORITHM
from rewardflow.settings.run_settings import AlgorithmSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCorrection:
    """`changes` are settings of `algorithm`."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def algorithm(self) -> AlgorithmSettings:
        return replace(ALGORITHM, **self.changes)


PLAIN = NamedCorrection(name="ppo")
CORRECTIONS = (
    PLAIN,
    NamedCorrection(name="decoupled", changes={"loss": "decoupled"}),
    NamedCorrection(name="decoupled, no cap", changes={"loss": "decoupled", "behaviour_weight_cap": None}),
    NamedCorrection(
        name="decoupled, truncated",
        changes={"loss": "decoupled", "behaviour_weight_cap": 2.0, "above_cap": "truncate"},
    ),
    NamedCorrection(
        name="weights by response, truncated",
        changes={"behaviour_weights": "sequence", "behaviour_weight_cap": 2.0, "above_cap": "truncate"},
    ),
    NamedCorrection(name="rejected by token", changes={"reject": "token"}),
    NamedCorrection(name="rejected by response", changes={"reject": "sequence_mean", "reject_outside": (0.8, 1.25)}),
    NamedCorrection(name="ratio to behaviour", changes={"ratio_to": "behaviour"}),
    # Weights of 0 to 2: truncated importance sampling without a trust region.
    NamedCorrection(
        name="cispo, ratio to behaviour",
        changes={"loss": "cispo", "ratio_to": "behaviour", "clip_low": 0.9999, "clip_high": 1.0},
    ),
    # The geometric mean over a response is closer to 1 than a token's ratio, so its clip is narrower.
    NamedCorrection(
        name="gspo, ratio to behaviour",
        changes={
            "loss": "gspo",
            "ratio_to": "behaviour",
            "clip_low": 0.1,
            "clip_high": 0.1,
            "aggregation": "seq_mean_token_mean",
        },
    ),
    NamedCorrection(name="truncated masked", changes={"mask_truncated": True}),
)
