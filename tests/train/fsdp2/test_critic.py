"""A critic learns beside the policy, in the same verbs: its gradient is that of the whole batch, however it is cut."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from plain_computation import gradient_stepped_on, plain_gradient
from tiny_training import (
    MAX_RESPONSE_TOKENS,
    batch,
    critic_part,
    random_samples,
    sample,
    tiny_model,
    tiny_trainer,
    valued,
    weights,
)
from torch import Tensor

from rewardflow.algo.estimator import TokenTargets
from rewardflow.errors import InvalidInput
from rewardflow.flow.protocols import ValueEstimator
from rewardflow.flow.records import Sample, UpdateReport
from rewardflow.settings.run_settings import Aggregation, AlgorithmSettings, CriticSettings, TrainerSettings
from rewardflow.train.fsdp2.trainer import TorchTrainer
from rewardflow.train.packing import TokenRow

UNCLIPPED = TrainerSettings(lr=1e-2, max_grad_norm=None, micro_batch_tokens=40)
MODEL = CriticSettings(lr=1e-2, max_grad_norm=None)
HEAD = CriticSettings(form="head", lr=1e-2, max_grad_norm=None, trunk_weight=0.3)


SAMPLES = valued(random_samples(12))


async def one_update(trainer: TorchTrainer, parts: Sequence[Sequence[Sample]], step: int = 0) -> UpdateReport:
    async with trainer.step(step):
        for i, part in enumerate(parts):
            await trainer.forward_backward(batch(part, is_last=i == len(parts) - 1))
        return await trainer.optim_step()


def updated(trainer: TorchTrainer, *parts: Sequence[Sample], step: int = 0) -> UpdateReport:
    return asyncio.run(one_update(trainer, parts, step))


def plain_value_loss(
    hidden_of: Any, head: torch.nn.Linear, samples: Sequence[Sample], rule: Aggregation, clip: float | None
) -> Tensor:
    """TokenRow by row, with nothing packed or accumulated."""
    rows = []
    for one in samples:
        if not one.is_scored:
            continue
        at_T = torch.tensor(TokenRow.of(one.rollout).sampled)
        values_T = head(hidden_of(torch.tensor([one.rollout.token_ids]))[0][at_T - 1]).squeeze(-1)
        returns_T, old_T = one.advantage.returns_T, one.precomputed.values
        loss_T = (values_T - returns_T) ** 2
        if clip is not None:
            loss_T = torch.maximum(loss_T, (values_T.clamp(old_T - clip, old_T + clip) - returns_T) ** 2)
        rows.append(0.5 * loss_T)
    match rule:
        case "token_mean":
            return torch.cat(rows).mean()
        case "seq_mean_token_sum":
            return torch.stack([row.sum() for row in rows]).mean()
        case "seq_mean_token_mean":
            return torch.stack([row.mean() for row in rows]).mean()
        case "fixed_length":
            return torch.stack([row.sum() for row in rows]).mean() / MAX_RESPONSE_TOKENS


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# -- gradients --


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_value_model_has_the_gradient_of_the_whole_batch_however_it_is_streamed(
    aggregation: Aggregation, clip: float | None
) -> None:
    part = critic_part(replace(MODEL, clip=clip))
    model, trunk = part.model, part.model.trunk
    assert trunk is not None
    loss = plain_value_loss(lambda ids: trunk(input_ids=ids).last_hidden_state, model.head, SAMPLES, aggregation, clip)
    expected = flat(torch.autograd.grad(loss, list(model.parameters())))
    algorithm = AlgorithmSettings(advantage="gae", aggregation=aggregation)
    with tiny_trainer(trainer=UNCLIPPED, algorithm=algorithm, critic=part) as trainer:
        report = updated(trainer, SAMPLES[:5], [], SAMPLES[5:])
        assert trainer.critic is not None
        assert relative_error(gradient_stepped_on(model, trainer.critic.optimizer), expected) < 1e-5
    assert report.metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert report.metrics["critic_grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-5)
    assert (report.metrics["value_clipped"] > 0) is (clip is not None)


def test_a_value_model_leaves_the_policys_update_as_it_is() -> None:
    plain = random_samples(12)
    found = []
    for part in (None, critic_part(MODEL)):
        with tiny_trainer(trainer=UNCLIPPED, critic=part) as trainer:
            updated(trainer, plain if part is None else SAMPLES)
            found.append(weights(trainer.model))
    torch.testing.assert_close(*found)


def test_a_head_has_its_whole_gradient_and_the_trunk_its_share_beside_that_of_the_policy() -> None:
    model, part = tiny_model(), critic_part(HEAD)
    loss = plain_value_loss(
        lambda ids: model.base_model(input_ids=ids).last_hidden_state, part.model.head, SAMPLES, "token_mean", 0.5
    )
    own = flat(torch.autograd.grad(loss, list(part.model.parameters()), retain_graph=True))
    to_trunk = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    expected = plain_gradient(model, random_samples(12), AlgorithmSettings()) + 0.3 * flat(to_trunk)
    with tiny_trainer(model, trainer=UNCLIPPED, critic=part) as trainer:
        updated(trainer, SAMPLES[:5], SAMPLES[5:])
        assert trainer.critic is not None
        assert relative_error(gradient_stepped_on(part.model, trainer.critic.optimizer), own) < 1e-5
        assert relative_error(gradient_stepped_on(model, trainer.optimizer), expected) < 1e-5
        assert trainer.statistics().num_rows_without_gradient == 0  # values teach where advantages are 0


def test_with_a_trunk_weight_of_0_the_policy_learns_as_if_there_were_no_head() -> None:
    found = []
    # Adam's first update is the sign of a gradient, however small, unless eps is larger: then rounding stays rounding.
    smooth = replace(UNCLIPPED, eps=1e-3)
    for part in (None, critic_part(replace(HEAD, trunk_weight=0.0))):
        with tiny_trainer(trainer=smooth, critic=part) as trainer:
            updated(trainer, random_samples(12) if part is None else SAMPLES)
            found.append(weights(trainer.model))
    torch.testing.assert_close(*found)


# -- values --


@pytest.mark.parametrize("settings", [MODEL, HEAD], ids=["model", "head"])
def test_values_come_in_order_one_for_each_sampled_token(settings: CriticSettings) -> None:
    rollouts = [one.rollout for one in SAMPLES]
    model, part = tiny_model(), critic_part(settings)
    trunk = part.model.trunk or model.base_model
    with tiny_trainer(model, trainer=UNCLIPPED, critic=part) as trainer:
        as_the_flow_sees_it: ValueEstimator = trainer
        found = asyncio.run(as_the_flow_sees_it.values(rollouts))
    for values_T, rollout in zip(found, rollouts, strict=True):
        at_T = torch.tensor(TokenRow.of(rollout).sampled)
        hidden_LD = trunk(input_ids=torch.tensor([rollout.token_ids])).last_hidden_state[0]
        torch.testing.assert_close(values_T, part.model.of_hidden(hidden_LD[at_T - 1]), rtol=1e-4, atol=1e-5)


def test_values_without_a_critic_are_refused() -> None:
    with tiny_trainer() as trainer, pytest.raises(InvalidInput, match="values need a critic, got critic=None"):
        asyncio.run(trainer.values([SAMPLES[0].rollout]))


# -- failed verdicts --


@pytest.mark.parametrize("settings", [MODEL, HEAD], ids=["model", "head"])
def test_failed_rows_have_no_value_term_wherever_they_stand(settings: CriticSettings) -> None:
    reports = []
    for samples in (SAMPLES, [one for one in SAMPLES if one.is_scored]):
        with tiny_trainer(trainer=UNCLIPPED, critic=critic_part(settings)) as trainer:
            reports.append(updated(trainer, samples))
    assert reports[0] == reports[1]
    failed = [one for one in random_samples(12) if not one.is_scored]  # with neither returns nor values
    with tiny_trainer(critic=critic_part(settings)) as trainer:
        before = weights(trainer.critic.model)  # type: ignore[union-attr]
        assert updated(trainer, failed).metrics["skipped_empty"] == 1.0
        assert torch.equal(weights(trainer.critic.model), before)  # type: ignore[union-attr]


def test_a_scored_row_without_returns_or_values_is_refused() -> None:
    bare = sample(SAMPLES[0].rollout, 1.0, old=SAMPLES[0].precomputed.old)
    with (
        tiny_trainer(critic=critic_part(MODEL)) as trainer,
        pytest.raises(InvalidInput, match="needs its returns and its values before the update, got float and NoneType"),
    ):
        updated(trainer, [bare])


# -- steps --


@pytest.mark.parametrize("settings", [MODEL, HEAD], ids=["model", "head"])
def test_in_its_first_steps_only_the_critic_learns(settings: CriticSettings) -> None:
    alone = replace(settings, alone_steps=2)
    with tiny_trainer(trainer=UNCLIPPED, critic=critic_part(alone)) as trainer:
        assert trainer.critic is not None
        policy, values = weights(trainer.model), weights(trainer.critic.model)
        for step in range(2):
            report = updated(trainer, SAMPLES, step=step)
            assert torch.equal(weights(trainer.model), policy)
            assert not torch.equal(weights(trainer.critic.model), values)
            values = weights(trainer.critic.model)
            assert "policy_loss" not in report.metrics
            assert report.metrics["value_loss"] > 0
        assert not trainer.optimizer.state
        updated(trainer, SAMPLES, step=2)
        assert not torch.equal(weights(trainer.model), policy)


def test_the_policys_schedule_begins_with_the_first_step_in_which_it_learns() -> None:
    rates = TrainerSettings(lr=1.0, lr_schedule="linear", warmup_steps=1, threads=1)
    alone = critic_part(replace(MODEL, alone_steps=2))
    with tiny_trainer(trainer=rates, critic=alone, total_steps=5) as trainer:
        found = [updated(trainer, SAMPLES, step=step).lr for step in range(5)]
    assert found[2:] == pytest.approx([0.5, 1.0, 0.5])


def test_its_learning_rate_has_a_schedule_of_its_own() -> None:
    settings = replace(MODEL, lr=1.0, lr_schedule="linear", warmup_steps=1)
    with tiny_trainer(critic=critic_part(settings), total_steps=5) as trainer:
        rates = [updated(trainer, SAMPLES, step=step).metrics["critic_lr"] for step in range(5)]
        assert trainer.lr == 1e-2
    assert rates == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25])


def test_its_gradient_is_clipped_by_its_own_norm() -> None:
    found = []
    for max_grad_norm in (None, 1e-3):
        part = critic_part(replace(MODEL, max_grad_norm=max_grad_norm))
        with tiny_trainer(trainer=UNCLIPPED, critic=part) as trainer:
            report = updated(trainer, SAMPLES)
            assert trainer.critic is not None
            found.append(
                (report.metrics["critic_grad_norm"], gradient_stepped_on(part.model, trainer.critic.optimizer))
            )
    (norm, whole), (same_norm, cut) = found
    assert norm == same_norm > 1e-3
    torch.testing.assert_close(cut, whole * (1e-3 / norm), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("settings", [MODEL, HEAD], ids=["model", "head"])
def test_offloading_between_steps_changes_nothing(settings: CriticSettings) -> None:
    found = []
    for offload in (False, True):
        with tiny_trainer(trainer=replace(UNCLIPPED, offload=offload), critic=critic_part(settings)) as trainer:
            for step in range(3):
                updated(trainer, SAMPLES, step=step)
            assert trainer.critic is not None
            found.append((weights(trainer.model), weights(trainer.critic.model)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_gradient_that_is_not_finite_leaves_its_weights_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    bad = replace(SAMPLES[0], advantage=TokenTargets(SAMPLES[0].advantage.advantages_T, torch.tensor(float("inf"))))
    with tiny_trainer(critic=critic_part(MODEL)) as trainer:
        assert trainer.critic is not None
        before = weights(trainer.critic.model)
        report = updated(trainer, [bad, *SAMPLES[1:]])
        assert torch.equal(weights(trainer.critic.model), before)
    assert report.metrics["critic_skipped_nonfinite"] == 1.0
    assert report.metrics["skipped_nonfinite"] == 0.0
    assert "the norm of the critic's gradient" in caplog.text


def test_a_bfloat16_trunk_has_float32_values_and_gradients() -> None:
    with tiny_trainer(trainer=replace(UNCLIPPED, autocast="bfloat16"), critic=critic_part(MODEL)) as trainer:
        [values_T] = asyncio.run(trainer.values([SAMPLES[0].rollout]))
        assert values_T.dtype == torch.float32
        assert updated(trainer, SAMPLES).metrics["critic_grad_norm"] > 0


# -- checkpoints --


def test_a_critic_is_put_back_beside_the_policy_though_their_weights_have_the_same_names(tmp_path: Path) -> None:
    with tiny_trainer(trainer=UNCLIPPED, critic=critic_part(MODEL)) as trainer:
        updated(trainer, SAMPLES)
        asyncio.run(trainer.take()).write(tmp_path)
        updated(trainer, SAMPLES, step=1)
        assert trainer.critic is not None
        expected = weights(trainer.model), weights(trainer.critic.model)
    with tiny_trainer(tiny_model(seed=8), trainer=UNCLIPPED, critic=critic_part(MODEL, seed=9)) as again:
        asyncio.run(again.put_back(tmp_path))
        updated(again, SAMPLES, step=1)
        assert again.critic is not None
        found = weights(again.model), weights(again.critic.model)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_checkpoint_without_a_critic_is_no_checkpoint_of_a_run_with_one(tmp_path: Path) -> None:
    with tiny_trainer() as trainer:
        asyncio.run(trainer.take()).write(tmp_path)
    with (
        tiny_trainer(critic=critic_part(MODEL)) as trainer,
        pytest.raises(InvalidInput, match="a checkpoint must be of the same model"),
    ):
        asyncio.run(trainer.put_back(tmp_path))
