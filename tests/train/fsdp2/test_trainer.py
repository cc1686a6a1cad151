"""The gradient is that of the whole batch, however it is cut, and no bad batch spoils the weights."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from plain_computation import gradient_stepped_on, plain_gradient, plain_loss
from tiny_training import batch, random_samples, rollout, sample, tiny_model, tiny_trainer, weights
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.flow.protocols import Trainer
from rewardflow.flow.records import Sample, UpdateReport
from rewardflow.settings.run_settings import Aggregation, AlgorithmSettings, TrainerSettings
from rewardflow.train.fsdp2.trainer import TorchTrainer

SAMPLES = random_samples(12)
UNCLIPPED = TrainerSettings(lr=1e-2, max_grad_norm=None, micro_batch_tokens=40)
FULL = AlgorithmSettings(kl_coef=0.3, entropy_coef=0.05, clip_low=0.1, clip_high=0.3, loss="decoupled")


def parts_of(samples: Sequence[Sample], sizes: Sequence[int]) -> list[Sequence[Sample]]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [samples[start : start + size] for start, size in zip(starts, sizes, strict=True)]


async def one_update(trainer: TorchTrainer, parts: Sequence[Sequence[Sample]], step: int = 0) -> UpdateReport:
    async with trainer.step(step):
        for i, part in enumerate(parts):
            await trainer.forward_backward(batch(part, is_last=i == len(parts) - 1))
        return await trainer.optim_step()


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# -- the gradient is that of the whole batch --


@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 7], [3, 0, 9]], ids=str)
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_an_update_streamed_in_any_parts_has_the_gradient_of_the_whole_batch(
    aggregation: Aggregation, sizes: list[int]
) -> None:
    model = tiny_model()
    algorithm = AlgorithmSettings(kl_coef=0.3, clip_low=0.1, aggregation=aggregation)
    expected, loss = plain_gradient(model, SAMPLES, algorithm), plain_loss(model, SAMPLES, algorithm).item()
    with tiny_trainer(model, trainer=UNCLIPPED, algorithm=algorithm) as trainer:
        report = asyncio.run(one_update(trainer, parts_of(SAMPLES, sizes)))
        assert relative_error(gradient_stepped_on(model, trainer.optimizer), expected) < 1e-5
    assert report.grad_norm == pytest.approx(float(expected.norm()), rel=1e-5)
    assert report.metrics["policy_loss"] + 0.3 * report.metrics["kl"] == pytest.approx(loss, rel=1e-5)
    assert report.metrics["clipped_low"] > 0
    assert report.metrics["clipped_high"] > 0


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_rows_with_an_advantage_of_0_need_no_pass_and_count_in_the_denominator(aggregation: Aggregation) -> None:
    model = tiny_model()
    algorithm = AlgorithmSettings(aggregation=aggregation)
    expected = plain_gradient(model, SAMPLES, algorithm)
    with tiny_trainer(model, trainer=UNCLIPPED, algorithm=algorithm) as trainer:
        report = asyncio.run(one_update(trainer, parts_of(SAMPLES, [6, 6])))
        assert relative_error(gradient_stepped_on(model, trainer.optimizer), expected) < 1e-5
        assert trainer.statistics().num_rows_without_gradient == 2
        assert trainer.statistics().num_rows == 6
    assert report.num_sequences == 8
    assert report.metrics["trained_tokens"] < report.num_tokens


def test_every_term_together_has_the_gradient_of_the_whole_batch() -> None:
    model = tiny_model()
    expected = plain_gradient(model, SAMPLES, FULL)
    with tiny_trainer(model, trainer=UNCLIPPED, algorithm=FULL) as trainer:
        report = asyncio.run(one_update(trainer, parts_of(SAMPLES, [4, 8])))
        assert relative_error(gradient_stepped_on(model, trainer.optimizer), expected) < 1e-5
    assert report.metrics["entropy"] > 0
    assert report.metrics["behaviour_capped"] > 0


def test_failed_rows_change_nothing_wherever_they_stand() -> None:
    reports = []
    for samples in (SAMPLES, [one for one in SAMPLES if one.is_scored]):
        with tiny_trainer(algorithm=FULL, trainer=UNCLIPPED) as trainer:
            reports.append(asyncio.run(one_update(trainer, [samples])))
    assert reports[0] == reports[1]


def test_masked_rows_change_nothing_but_the_advantages_of_their_group() -> None:
    masked = [replace(one, is_masked=index % 2 == 0) for index, one in enumerate(SAMPLES)]
    reports = []
    for samples in (masked, [one for one in masked if not one.is_masked]):
        with tiny_trainer(algorithm=FULL, trainer=UNCLIPPED) as trainer:
            reports.append(asyncio.run(one_update(trainer, [samples])))
    assert reports[0] == reports[1]


def test_a_failed_row_needs_neither_tokens_nor_log_probs() -> None:
    failed = sample(rollout([], [], token_ids=None), 0.0, value=None)
    with tiny_trainer(algorithm=FULL) as trainer:
        report = asyncio.run(one_update(trainer, [[failed, SAMPLES[0]]]))
    assert report.num_sequences == 1


def test_the_gradient_is_clipped_after_it_is_divided() -> None:
    model = tiny_model()
    expected = plain_gradient(model, SAMPLES, AlgorithmSettings())
    norm = float(expected.norm())
    settings = TrainerSettings(lr=1e-2, max_grad_norm=2 * norm)  # above the norm, below that of the numerators
    with tiny_trainer(model, trainer=settings) as trainer:
        report = asyncio.run(one_update(trainer, parts_of(SAMPLES, [6, 6])))
        assert relative_error(gradient_stepped_on(model, trainer.optimizer), expected) < 1e-5
    assert report.grad_norm == pytest.approx(norm, rel=1e-5)

    model = tiny_model()
    with tiny_trainer(model, trainer=TrainerSettings(lr=1e-2, max_grad_norm=norm / 4)) as trainer:
        report = asyncio.run(one_update(trainer, [SAMPLES]))
        assert relative_error(gradient_stepped_on(model, trainer.optimizer), expected / 4) < 1e-5
    assert report.grad_norm == pytest.approx(norm, rel=1e-5)


def test_with_one_update_a_step_old_log_probs_are_the_present_ones() -> None:
    model = tiny_model()
    samples = [sample(one.rollout, one.advantage) for one in SAMPLES if one.is_scored]
    present = [sample(one.rollout, one.advantage, old=_log_probs(model, one)) for one in samples]
    expected = plain_gradient(model, present, AlgorithmSettings())
    with tiny_trainer(model, trainer=UNCLIPPED, uses_old=False) as trainer:
        report = asyncio.run(one_update(trainer, [samples]))
        assert relative_error(gradient_stepped_on(model, trainer.optimizer), expected) < 1e-5
    assert report.metrics["ratio"] == pytest.approx(1.0)


def _log_probs(model: torch.nn.Module, of: Sample) -> Tensor:
    with tiny_trainer(model) as trainer:
        return asyncio.run(trainer.log_probs([of.rollout], "policy"))[0]  # type: ignore[return-value]


def test_an_advantage_may_be_one_number_for_each_sampled_token() -> None:
    of = rollout([1, 2], [3, 4, 5])
    reports = []
    for advantage in (0.5, torch.full((3,), 0.5), [0.5, 0.5, 0.5]):
        with tiny_trainer(uses_old=False) as trainer:
            reports.append(asyncio.run(one_update(trainer, [[sample(of, advantage)]])))
    assert reports[0] == reports[1] == reports[2]


# -- log-probs --


def test_log_probs_come_in_order_one_for_each_sampled_token() -> None:
    rollouts = [one.rollout for one in SAMPLES] + [rollout([1, 2], [])]
    settings = TrainerSettings(micro_batch_tokens=30)
    with tiny_trainer(trainer=settings) as trainer:
        together = asyncio.run(trainer.log_probs(rollouts, "policy"))
        alone = [asyncio.run(trainer.log_probs([one], "policy"))[0] for one in rollouts]
    assert [len(found) for found in together] == [sum(one.response_mask or ()) for one in rollouts]
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert not found.requires_grad


def test_the_reference_stays_as_it_was_while_the_policy_learns() -> None:
    rollouts = [one.rollout for one in SAMPLES]
    with tiny_trainer(reference=tiny_model(), trainer=TrainerSettings(lr=1e-2, offload=True)) as trainer:
        before = asyncio.run(trainer.log_probs(rollouts, "reference"))
        asyncio.run(one_update(trainer, [SAMPLES]))
        after = asyncio.run(trainer.log_probs(rollouts, "reference"))
        policy = asyncio.run(trainer.log_probs(rollouts, "policy"))
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert not torch.allclose(torch.cat(list(before)), torch.cat(list(policy)))


def test_taking_log_probs_between_micro_batches_leaves_the_gradient_alone() -> None:
    async def interrupted(trainer: TorchTrainer) -> None:
        async with trainer.step(0):
            await trainer.forward_backward(batch(SAMPLES[:6], is_last=False))
            await trainer.log_probs([one.rollout for one in SAMPLES], "policy")
            await trainer.forward_backward(batch(SAMPLES[6:]))
            await trainer.optim_step()

    found = []
    for body in (interrupted, lambda trainer: one_update(trainer, parts_of(SAMPLES, [6, 6]))):
        with tiny_trainer() as trainer:
            asyncio.run(body(trainer))
            found.append(weights(trainer.model))
    assert torch.equal(*found)


# -- the same again --


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_the_same_micro_batches_give_the_same_weights_bit_for_bit(autocast: Any) -> None:
    async def three_steps(trainer: TorchTrainer) -> None:
        for step in range(3):
            await one_update(trainer, parts_of(random_samples(12, seed=step), [5, 7]), step)

    found = []
    for _ in range(2):
        with tiny_trainer(algorithm=FULL, trainer=TrainerSettings(lr=1e-2, autocast=autocast)) as trainer:
            asyncio.run(three_steps(trainer))
            found.append(weights(trainer.model))
    assert torch.equal(*found)
    assert not torch.equal(found[0], weights(tiny_model()))


def test_offloading_between_steps_changes_nothing() -> None:
    async def three_steps(trainer: TorchTrainer) -> None:
        for step in range(3):
            await one_update(trainer, [SAMPLES], step)

    found = []
    for offload in (False, True):
        with tiny_trainer(trainer=TrainerSettings(lr=1e-2, offload=offload)) as trainer:
            asyncio.run(three_steps(trainer))
            found.append(weights(trainer.model))
    assert torch.equal(*found)


def test_gradients_under_autocast_accumulate_in_float32() -> None:
    async def first_half(trainer: TorchTrainer) -> set[torch.dtype]:
        async with trainer.step(0):
            await trainer.forward_backward(batch(SAMPLES))
            return {weight.grad.dtype for weight in trainer.model.parameters() if weight.grad is not None}

    with tiny_trainer(trainer=TrainerSettings(autocast="bfloat16")) as trainer:
        assert asyncio.run(first_half(trainer)) == {torch.float32}


def test_gradient_checkpointing_changes_nothing() -> None:
    found = []
    for is_checkpointed in (False, True):
        model = tiny_model()
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        with tiny_trainer(model, algorithm=FULL) as trainer:
            asyncio.run(one_update(trainer, parts_of(SAMPLES, [6, 6])))
            found.append(weights(model))
    assert torch.equal(*found)


# -- a step --


def test_the_learning_rate_moves_once_a_step_however_many_updates_it_has() -> None:
    settings = TrainerSettings(lr=1.0, lr_schedule="linear")

    async def rates(trainer: TorchTrainer) -> list[float]:
        found = []
        for step in range(3):
            async with trainer.step(step):
                for _ in range(step + 1):
                    await trainer.forward_backward(batch(SAMPLES))
                    found.append((await trainer.optim_step()).lr)
        return [*found, trainer.lr]

    with tiny_trainer(trainer=settings, total_steps=4) as trainer:
        assert asyncio.run(rates(trainer)) == [1.0, 0.75, 0.75, 0.5, 0.5, 0.5, 0.25]


def test_a_resumed_run_has_the_learning_rate_of_its_step() -> None:
    with tiny_trainer(trainer=TrainerSettings(lr=1.0, lr_schedule="linear"), total_steps=4) as trainer:
        assert asyncio.run(one_update(trainer, [SAMPLES], 3)).lr == 0.25


def test_a_gradient_that_a_step_did_not_use_is_not_the_next_ones() -> None:
    async def body(trainer: TorchTrainer) -> UpdateReport:
        async with trainer.step(0):
            await trainer.forward_backward(batch(SAMPLES[:6]))
        return await one_update(trainer, [SAMPLES[6:]])

    with tiny_trainer() as interrupted, tiny_trainer() as fresh:
        assert asyncio.run(body(interrupted)) == asyncio.run(one_update(fresh, [SAMPLES[6:]]))


def test_an_update_outside_a_step_and_a_step_within_a_step_are_refused() -> None:
    async def nested(trainer: TorchTrainer) -> None:
        async with trainer.step(0), trainer.step(1):
            pass

    with tiny_trainer() as trainer:
        with pytest.raises(InvalidInput, match="an update is part of a step"):
            asyncio.run(trainer.optim_step())
        with pytest.raises(InvalidInput, match="got 1 within 0"):
            asyncio.run(nested(trainer))


# -- bad batches --


def test_an_update_in_which_nothing_was_scored_makes_no_step_and_says_so() -> None:
    with tiny_trainer(algorithm=FULL) as trainer:
        failed = [one for one in SAMPLES if not one.is_scored]
        report = asyncio.run(one_update(trainer, [failed]))
        assert torch.equal(weights(trainer.model), weights(tiny_model()))
        assert trainer.statistics().num_empty_updates == 1
    assert report.metrics["skipped_empty"] == 1.0
    assert (report.num_sequences, report.grad_norm) == (0, 0.0)


def test_an_update_whose_advantages_are_all_0_goes_on_with_the_momentum_it_had() -> None:
    zero = [sample(one.rollout, 0.0, old=one.precomputed.old, reference=one.precomputed.reference) for one in SAMPLES]
    nearly = AlgorithmSettings(kl_coef=1e-30)  # makes the passes that an advantage of 0 does not need
    found = []
    for algorithm in (AlgorithmSettings(), nearly):
        with tiny_trainer(algorithm=algorithm) as trainer:
            asyncio.run(one_update(trainer, [SAMPLES]))
            learnt = weights(trainer.model)
            report = asyncio.run(one_update(trainer, [zero], 1))
            found.append(weights(trainer.model))
            assert not torch.equal(found[-1], learnt)
            assert report.grad_norm == pytest.approx(0.0, abs=1e-20)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_are_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    of = SAMPLES[0]
    bad = sample(of.rollout, math.inf, old=of.precomputed.old)
    with tiny_trainer() as trainer:
        report = asyncio.run(one_update(trainer, [[bad, *SAMPLES[1:]]]))
        assert torch.equal(weights(trainer.model), weights(tiny_model()))
        assert not trainer.optimizer.state
        assert trainer.statistics().num_nonfinite_updates == 1
        good = asyncio.run(one_update(trainer, [SAMPLES], 1))
    assert not math.isfinite(report.grad_norm)
    assert report.metrics["skipped_nonfinite"] == 1.0
    assert "the weights stay as they are" in caplog.text
    assert good.metrics["skipped_nonfinite"] == 0.0
    assert math.isfinite(good.grad_norm)


# -- what it refuses --


def test_weights_that_are_not_float32_are_refused_and_autocast_is_named() -> None:
    with (
        pytest.raises(InvalidInput, match=r"trainer\.autocast=bfloat16, got torch\.bfloat16"),
        tiny_trainer(tiny_model().bfloat16()),
    ):
        pass


def test_float16_is_refused() -> None:
    with (
        pytest.raises(InvalidInput, match=r"got trainer\.autocast=float16"),
        tiny_trainer(trainer=TrainerSettings(autocast="float16")),
    ):
        pass


def test_log_probs_of_a_reference_that_is_not_there_are_refused() -> None:
    with tiny_trainer() as trainer, pytest.raises(InvalidInput, match="reference=None"):
        asyncio.run(trainer.log_probs([SAMPLES[0].rollout], "reference"))


def test_it_is_a_trainer_of_the_flow() -> None:
    with tiny_trainer() as trainer:
        as_the_flow_sees_it: Trainer = trainer
        assert as_the_flow_sees_it is trainer
