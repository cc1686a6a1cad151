"""Registers rewardflow's parts in verl. verl loads this module in every process, by the entry point `verl.plugins`.

Always true: loading the module costs nothing; each part is registered when verl imports the registry for it, and if
that fails, verl's import fails with the reason. With an unsupported verl it logs an ERROR and registers nothing.
"""

from __future__ import annotations

import logging

from rewardflow.adapters.verl.import_hooks import after_import
from rewardflow.adapters.verl.versions import check_version, installed_version
from rewardflow.errors import InvalidInput

logger = logging.getLogger(__name__)

NAME = "rewardflow"  # of the reward manager and of the trainer mode
DECOUPLED = "decoupled"  # of the policy loss


def register_reward_manager() -> None:
    from rewardflow.adapters.verl import reward_manager

    reward_manager.register(NAME)


def register_policy_loss() -> None:
    from rewardflow.adapters.verl.training import decoupled_loss

    decoupled_loss.register(DECOUPLED)


def register_trainer() -> None:
    from rewardflow.adapters.verl.training import trainer

    trainer.register(NAME)


def load() -> None:
    try:
        check_version(installed_version())
    except InvalidInput as error:
        logger.error("rewardflow registers nothing in this verl: %s", error)
        return
    after_import("verl.experimental.reward_loop.reward_manager", register_reward_manager)
    after_import("verl.trainer.ppo.core_algos", register_policy_loss)
    after_import("verl.trainer.ppo.v1", register_trainer)


load()
