"""Says how much of a step's tokens a mini-batch has, so that a token weighs the same in every mini-batch.

Always true: the shares of a step's mini-batches have a mean of 1; they depend on what was generated and, except in the
order of completion, not on verdicts.
"""

from __future__ import annotations

AGGREGATION = "token-mean"  # verl's `loss_agg_mode` that divides by the mini-batch's own tokens


def token_share(own: int, *, mean: float) -> float:
    """Returns the tokens generated for one mini-batch as a multiple of the step's mean mini-batch."""
    return own / mean if own else 1.0
