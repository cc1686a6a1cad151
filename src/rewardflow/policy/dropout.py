"""Switches off the dropout of a model that is trained on its own samples.

Always true: afterwards the model computes the same in training mode as otherwise, and its configuration, which an
export writes, is unchanged. Engines generate without dropout: log-probs with it would be of another policy than the one
that generated, so that ratios would be noise before the first update.
"""

from __future__ import annotations

from torch import nn


def switch_off_dropout(model: nn.Module) -> None:
    """Sets every rate to 0: those of dropout modules, and those that models of transformers keep as numbers."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)
