"""How trainer mode `rewardflow` calls verl's stages, on a trainer whose stages only note their calls."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from omegaconf import OmegaConf

from rewardflow.adapters.verl.accounting.step_metrics import VerlStepRecord
from rewardflow.adapters.verl.training.mini_batches import MiniBatch
from rewardflow.adapters.verl.training.trainer_usage import TrainerUsage
from rewardflow.adapters.verl.verl_verdict import extra_info_of
from rewardflow.types import Reward

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # verl imports old names of Ray
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.utils import MetricsAggregator

    from rewardflow.adapters.verl.training.trainer import RewardflowTrainer
    from rewardflow.adapters.verl.training.training_worker import TOKEN_SHARES

ROW = {"response_len": 3, "seq_len": 5, "min_global_steps": 0}


class Workers:
    """A worker group. `calls` has the names of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def advance_learning_rate(self) -> list[float]:
        self.calls.append("advance_learning_rate")
        return [0.5]

    def to(self, device: str, **what: bool) -> None:
        self.calls.append(f"to {device}")


class NotingTrainer(RewardflowTrainer):
    """Starts nothing. `kept` says for each stage whether the actor stays loaded after it."""

    def __init__(self, *, ref_in_actor: bool, param_offload: bool, critic_warmup: int = 0) -> None:
        engine = {"param_offload": param_offload, "optimizer_offload": False}
        self.config = OmegaConf.create(
            {
                "actor_rollout_ref": {"actor": {"strategy": "fsdp2", "fsdp_config": engine}},
                "trainer": {"critic_warmup": critic_warmup},
            }
        )
        self.ref_in_actor = ref_in_actor
        self.use_reference_policy = self.use_critic = True
        self.global_steps = 1
        self.actor_rollout_wg, self.critic_wg = Workers(), Workers()
        self.kept: dict[str, bool] = {}
        self._usage = TrainerUsage()

    def balanced(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch

    def take_old_log_probs(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self.kept["old"] = batch.extra_info["disable_auto_offload"]

    def take_ref_log_probs(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self.kept["reference"] = batch.extra_info["disable_auto_offload"]

    def take_values(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self.kept["values"] = batch.extra_info["disable_auto_offload"]

    def take_all(self) -> dict[str, bool]:
        batch = KVBatchMeta(partition_id="train", keys=["a_0_0"], tags=[ROW])
        self._with_log_probs(batch, MetricsAggregator(), {})
        return self.kept


@pytest.mark.parametrize("ref_in_actor", [False, True])
def test_the_actor_stays_loaded_until_its_updates_also_where_it_is_the_reference(ref_in_actor: bool) -> None:
    """A reference and a critic of their own load and unload themselves."""
    trainer = NotingTrainer(ref_in_actor=ref_in_actor, param_offload=True)
    assert trainer.take_all() == {"old": True, "reference": ref_in_actor, "values": False}


def test_without_offloading_nothing_is_kept_or_moved() -> None:
    trainer = NotingTrainer(ref_in_actor=True, param_offload=False)
    assert trainer.take_all() == {"old": False, "reference": False, "values": False}
    with trainer._on_device():
        pass
    assert trainer.actor_rollout_wg.calls == ["advance_learning_rate"]


def test_the_actors_learning_rate_waits_while_the_critic_trains_alone() -> None:
    trainer = NotingTrainer(ref_in_actor=False, param_offload=True, critic_warmup=2)
    for trainer.global_steps in (1, 2):
        with trainer._on_device():
            pass
    assert trainer.actor_rollout_wg.calls == ["to device", "to cpu", "to device", "advance_learning_rate", "to cpu"]
    assert trainer.critic_wg.calls == ["advance_learning_rate"] * 2


def test_validation_averages_over_the_samples_with_a_verdict_and_tells_how_many_have_none() -> None:
    trainer = NotingTrainer(ref_in_actor=False, param_offload=False)
    infos = {"reward": [0.5, 1.0], "acc": [0.5, 1.0]}
    expected = {("toy", "a"): 1, ("toy", "b"): 1, ("toy", "c"): 2}
    metrics = trainer.metrics_of_validation(["toy", "toy"], ["a", "b"], infos, [], expected)
    assert metrics["val-core/toy/acc/mean@1"] == 0.75
    assert metrics["rewardflow/validation/without_verdict"] == 2


def test_validation_takes_a_vote_on_the_answers_that_the_reward_found() -> None:
    rewards = [Reward(value=value, extras={"pred": pred}) for value, pred in [(1.0, 12), (0.0, "7"), (1.0, "12")]]
    shown = [extra_info_of(reward) for reward in rewards]
    infos = {"reward": [reward.value for reward in rewards], **{key: [one[key] for one in shown] for key in shown[0]}}
    trainer = NotingTrainer(ref_in_actor=False, param_offload=False)
    metrics = trainer.metrics_of_validation(["toy"] * 3, ["a"] * 3, infos, [], {("toy", "a"): 3})
    assert metrics["val-core/toy/acc/maj@3/mean"] > 0.5
    assert not any("/pred/" in name for name in metrics)


class UpdatingTrainer(NotingTrainer):
    """Has one rank, groups of one rollout and mini-batches of two groups. `shares` has those that the workers got."""

    def __init__(self) -> None:
        super().__init__(ref_in_actor=False, param_offload=False)
        ours = {"rollout": {"n": 1, "temperature": 1.0}, "actor": {"loss_agg_mode": "token-mean", "shuffle": False}}
        self.config = OmegaConf.merge(self.config, {"actor_rollout_ref": ours})
        self.use_critic = self._is_decoupled = False
        self._groups_per_update = 2
        self._record = VerlStepRecord.of(1, 0.0)
        self.actor_rollout_wg._dispatch_info = {"actor": [0]}
        self.shares: tuple[float, ...] = ()

    def with_advantages(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch

    def train_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        self.shares = batch.extra_info[TOKEN_SHARES]


def test_every_update_that_verl_makes_of_a_call_gets_a_share_also_with_several_sequences_in_a_rollout() -> None:
    long = MiniBatch([(f"a_0_{number}", ROW) for number in range(4)], token_share=1.5)
    short = MiniBatch([("b_0_0", ROW), ("c_0_0", ROW)], token_share=0.5)
    trainer = UpdatingTrainer()
    trainer._update([long, short], MetricsAggregator(), {})
    assert trainer.shares == (0.75, 0.75, 0.5)
