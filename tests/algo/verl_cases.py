"""The inputs for which verl's values are recorded in verl_values.json, by

.venv-oracle/bin/python tests/oracle/record.py        # `make test-oracle` makes that environment
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import torch
from algo.groups import FIXED, ScoredBatch, scored_group
from algo.policies import ADVANTAGES_BT, BEHAVIOUR_BT, MASK_BT, NEW_BT, OLD_BT

from rewardflow.settings.run_settings import AdvantageName, AlgorithmSettings

ADVANTAGE_NAMES = get_args(AdvantageName)

FILE = Path(__file__).with_name("verl_values.json")

WITH_GREEDY = ScoredBatch.of(
    [
        scored_group(*(1.0, 0.0, 0.5), masks=[[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0]], group_id="a", greedy=2),
        scored_group(*(0.0, 2.0), masks=[[1, 1, 1, 0], [1, 1, 0, 0]], group_id="b", greedy=0),
    ],
    torch.Generator().manual_seed(2),
)

_ADVANTAGES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"scale": "none"},
    "grpo_passk": {"advantage": "grpo_passk"},
    "grpo_passk_unscaled": {"advantage": "grpo_passk", "scale": "none"},
    "rloo": {"advantage": "rloo"},
    "opo": {"advantage": "opo"},
    "gpg": {"advantage": "gpg"},
    "reinforce_plus_plus": {"advantage": "reinforce_plus_plus"},
    "reinforce_plus_plus_discounted": {"advantage": "reinforce_plus_plus", "discount": 0.9},
    "reinforce_plus_plus_baseline": {"advantage": "reinforce_plus_plus_baseline"},
    "remax": {"advantage": "remax"},
}
ADVANTAGES = {name: AlgorithmSettings(**settings) for name, settings in _ADVANTAGES.items()} | {
    f"{name}_with_kl": AlgorithmSettings(**settings, reward_kl_coef=0.3, reward_kl_estimator="k3")
    for name, settings in _ADVANTAGES.items()
}

LOSSES = {
    "ppo": AlgorithmSettings(),
    "decoupled": AlgorithmSettings(loss="decoupled"),
    "cispo": AlgorithmSettings(loss="cispo"),
    "gspo": AlgorithmSettings(loss="gspo"),
    "policy_gradient": AlgorithmSettings(loss="policy_gradient"),
    "truncated_by_token": AlgorithmSettings(behaviour_weights="token", behaviour_weight_cap=2.0, above_cap="truncate"),
    "truncated_by_sequence": AlgorithmSettings(
        behaviour_weights="sequence", behaviour_weight_cap=2.0, above_cap="truncate"
    ),
    "left_out_by_sequence": AlgorithmSettings(behaviour_weights="sequence", behaviour_weight_cap=2.0),
    "gspo_truncated": AlgorithmSettings(
        loss="gspo", behaviour_weights="sequence", behaviour_weight_cap=2.0, above_cap="truncate"
    ),
    "policy_gradient_truncated": AlgorithmSettings(
        loss="policy_gradient", behaviour_weights="token", behaviour_weight_cap=2.0, above_cap="truncate"
    ),
    "rejected_by_token": AlgorithmSettings(reject="token", reject_outside=(0.5, 2.0)),
    "rejected_by_sequence": AlgorithmSettings(loss="gspo", reject="sequence", reject_outside=(0.3, 2.0)),
    "rejected_by_sequence_mean": AlgorithmSettings(loss="decoupled", reject="sequence_mean", reject_outside=(0.5, 1.5)),
}
TOKENS = {
    "log_probs_BT": NEW_BT,
    "old_BT": OLD_BT,
    "behaviour_BT": BEHAVIOUR_BT,
    "advantages_BT": ADVANTAGES_BT,
    "mask_BT": MASK_BT,
}

VALUES_BT = torch.randn(FIXED.mask_BT.shape, generator=torch.Generator().manual_seed(3))
DISCOUNT, LAM = 0.95, 0.9

# So far from the values before that the clip matters for many tokens.
NEW_VALUES_BT = VALUES_BT + 0.6 * torch.randn(FIXED.mask_BT.shape, generator=torch.Generator().manual_seed(4))
RETURNS_BT = VALUES_BT + torch.randn(FIXED.mask_BT.shape, generator=torch.Generator().manual_seed(5))
VALUE_CLIPS: dict[str, float | None] = {"clipped": 0.5, "narrow": 0.1, "unclipped": None}

ADAPTED: dict[str, Any] = {
    "coef": 0.1,
    "target": 0.02,
    "horizon": 1000,
    "seen": [(0.5, 64), (0.021, 64), (0.0, 64), (0.019, 128)],
}


def batch_of(name: str) -> ScoredBatch:
    return WITH_GREEDY if name.startswith("remax") else FIXED


def recorded() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(FILE.read_text())
    return values
