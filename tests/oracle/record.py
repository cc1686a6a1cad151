"""Records what verl gives for the cases of tests/algo/verl_cases.py:

.venv-oracle/bin/python tests/oracle/record.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from algo import verl_cases as cases
from algo.groups import FIXED
from oracle import verl_calls
from torch import Tensor

from rewardflow.settings.run_settings import AlgorithmSettings


def values() -> dict[str, Any]:
    gae = verl_calls.gae(FIXED.scores_BT, cases.VALUES_BT, FIXED.mask_BT, cases.DISCOUNT, cases.LAM)
    losses = {name: verl_calls.loss(settings, cases.TOKENS) for name, settings in cases.LOSSES.items()}
    return {
        "made_by": ".venv-oracle/bin/python tests/oracle/record.py, with verl 0.9.1 and torch 2.13.0",
        "advantages": {name: _rounded(advantages(name, settings)) for name, settings in cases.ADVANTAGES.items()},
        "gae": {"advantages": _rounded(gae[0] * FIXED.mask_BT), "returns": _rounded(gae[1] * FIXED.mask_BT)},
        "losses": {
            name: {"sum": round(total.item(), 6), "gradient": _rounded(gradient_BT)}
            for name, (total, gradient_BT) in losses.items()
        },
        "value_losses": {name: value_loss(clip) for name, clip in cases.VALUE_CLIPS.items()},
        "adapted": verl_calls.adapted(**cases.ADAPTED),
        "off_policy": verl_calls.off_policy(cases.OLD_BT, cases.BEHAVIOUR_BT, cases.MASK_BT),
    }


def advantages(name: str, settings: AlgorithmSettings) -> Tensor:
    batch = cases.batch_of(name)
    rewards_BT = None
    if settings.reward_kl_coef:
        rewards_BT = verl_calls.rewards_less_kl(batch, settings.reward_kl_coef, settings.reward_kl_estimator)
    return verl_calls.advantages(
        settings.advantage,
        batch,
        normed=settings.scale == "group",
        discount=settings.discount,
        rewards_BT=rewards_BT,
    )


def value_loss(clip: float | None) -> dict[str, Any]:
    total, clipped, gradient_BT = verl_calls.value_loss(
        cases.NEW_VALUES_BT, cases.VALUES_BT, cases.RETURNS_BT, FIXED.mask_BT, clip
    )
    return {"sum": round(total.item(), 6), "clipped": round(clipped, 6), "gradient": _rounded(gradient_BT)}


def _rounded(values_BT: Tensor) -> list[list[float]]:
    return [[round(value, 6) + 0.0 for value in row] for row in values_BT.to(torch.float64).tolist()]


if __name__ == "__main__":
    text = json.dumps(values(), indent=1)
    in_rows = re.sub(r"\[\s+([^][]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    cases.FILE.write_text(in_rows + "\n")
