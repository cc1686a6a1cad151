"""Registers rewardflow's parts in verl. verl loads this module in every process, by the entry point `verl.plugins`.

Always true: loading the module costs nothing; each part registers itself when verl imports the registry for it; a part
that cannot be registered is logged as an ERROR, and runs of verl that do not use rewardflow go on. A run that uses it
fails where verl looks for the part by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from importlib import import_module

from rewardflow.adapters.verl.import_hooks import after_import

logger = logging.getLogger(__name__)

# verl's registries, and the modules that register our parts in them when they are imported.
PARTS: Mapping[str, str] = {
    "verl.experimental.reward_loop.reward_manager": "rewardflow.adapters.verl.reward_manager",
    "verl.trainer.ppo.core_algos": "rewardflow.adapters.verl.training.decoupled_loss",
    "verl.trainer.ppo.v1": "rewardflow.adapters.verl.training.trainer",
}


def register(part: str) -> None:
    """Imports a part. A part that is being imported already registers itself when that import ends."""
    try:
        import_module(part)
    except Exception as error:  # anything may be missing in a verl that was not tested
        logger.error(
            "%s cannot be registered in this verl, so runs that use rewardflow fail: %s: %s",
            part,
            type(error).__name__,
            error,
        )


for registry, part in PARTS.items():
    after_import(registry, partial(register, part))
