"""What verl loads in every process, through the entry-point group `verl.plugins`.

Always true: loading it costs nothing; each part is registered when verl imports the registry that it goes into, and a
part that cannot be registered breaks that import with its reason. A verl that is not supported gets an ERROR in the
log and no part at all.
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
    from rewardflow.adapters.verl.training import decoupled_loss as loss

    loss.register(DECOUPLED)


def register_trainer() -> None:
    from rewardflow.adapters.verl.training import trainer

    trainer.register(NAME)


def load() -> None:
    try:
        check_version(installed_version())
    except InvalidInput as error:
        logger.error("rewardflow's plug-in for verl stays out: %s", error)
        return
    after_import("verl.experimental.reward_loop.reward_manager", register_reward_manager)
    after_import("verl.trainer.ppo.core_algos", register_policy_loss)
    after_import("verl.trainer.ppo.v1", register_trainer)


load()
