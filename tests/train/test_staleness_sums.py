"""What an update says of how far off policy it is, against the same figures taken from raw tensors, row by row."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_training import TEMPERATURE, batch, random_samples, rollout, sample, tiny_model, tiny_trainer
from torch import Tensor, nn

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Sample, UpdateReport
from rewardflow.settings.run_settings import AlgorithmSettings, TrainerSettings
from rewardflow.train.packing import TokenRow

SAMPLES = random_samples(24)
CUT_SMALL = TrainerSettings(lr=1e-2, micro_batch_tokens=30)
TRAINERS = AlgorithmSettings(loss="decoupled", behaviour="trainer", clip_low=0.1)


def updated(samples: Sequence[Sample], cuts: Sequence[int] = (), **settings: Any) -> UpdateReport:
    async def run() -> UpdateReport:
        bounds = [0, *cuts, len(samples)]
        async with trainer.step(0):
            for first, last in itertools.pairwise(bounds):
                await trainer.forward_backward(batch(samples[first:last], is_last=last == len(samples)))
            return await trainer.optim_step()

    with tiny_trainer(**settings) as trainer:
        return asyncio.run(run())


# -- the same, straightforwardly --


def trained(samples: Sequence[Sample], staleness: int | None = None) -> list[Sample]:
    chosen = [one for one in samples if one.is_scored and one.advantage != 0]
    return [one for one in chosen if staleness is None or staleness_of(one) == staleness]


def staleness_of(one: Sample) -> int:
    assert one.rollout.policy_version is not None
    return one.rollout.step - one.rollout.policy_version


def log_softmax_of(model: nn.Module, one: Sample) -> Tensor:
    """[sampled tokens, words]."""
    row = TokenRow.of(one.rollout)
    logits = model(input_ids=torch.tensor([list(row.token_ids)])).logits[0] / TEMPERATURE
    return logits.log_softmax(-1)[torch.tensor(row.sampled) - 1].detach()


def present_of(model: nn.Module, one: Sample) -> list[float]:
    row = TokenRow.of(one.rollout)
    words = torch.tensor([row.token_ids[place] for place in row.sampled])
    return log_softmax_of(model, one).gather(-1, words[:, None]).squeeze(-1).tolist()


def engine_of(one: Sample) -> list[float]:
    assert one.rollout.log_probs is not None
    return [one.rollout.log_probs[place] for place in TokenRow.of(one.rollout).sampled]


def expected(samples: Sequence[Sample], *, behaviour: str) -> dict[str, float]:
    """`behaviour` says whose log-probs stand for the policy that generated."""
    model = tiny_model()
    rows = []
    for one in samples:
        taken = engine_of(one) if behaviour == "engine" else one.precomputed.behaviour.tolist()
        held_against = one.precomputed.old.tolist() if behaviour == "engine" else taken
        rows.append((present_of(model, one), taken, held_against, engine_of(one)))
    ratios = [math.exp(p - b) for present, behaved, _, _ in rows for p, b in zip(present, behaved, strict=True)]
    products = [math.exp(max(-20.0, min(20.0, sum(present) - sum(behaved)))) for present, behaved, _, _ in rows]
    gaps = [abs(math.exp(t) - math.exp(e)) for _, _, mine, its in rows for t, e in zip(mine, its, strict=True)]
    return {
        "engine_diff_mean": statistics.mean(gaps),
        "engine_diff_max": max(gaps),
        "engine_diff_std": statistics.stdev(gaps),
        "behaviour_kl_k1": statistics.mean(-math.log(ratio) for ratio in ratios),
        "behaviour_kl_k3": statistics.mean(ratio - 1 - math.log(ratio) for ratio in ratios),
        "behaviour_ratio_mean": statistics.mean(ratios),
        "behaviour_ratio_max": max(ratios),
        "behaviour_ratio_min": min(ratios),
        "behaviour_ratio_std": statistics.stdev(ratios),
        "effective_share": sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios)),
        "response_effective_share": sum(products) ** 2 / (len(products) * sum(one**2 for one in products)),
    }


def clipped(samples: Sequence[Sample], *, low: float, high: float) -> tuple[float, float]:
    model = tiny_model()
    below, above = [], []
    for one in samples:
        for present, old in zip(present_of(model, one), one.precomputed.old.tolist(), strict=True):
            ratio = math.exp(present - old)
            below.append(one.advantage < 0 and ratio < low)
            above.append(one.advantage > 0 and ratio > high)
    return statistics.mean(below), statistics.mean(above)


# -- figures --


@pytest.mark.parametrize("behaviour", ["engine", "trainer"])
def test_the_figures_of_an_update_are_those_of_its_raw_log_probs(behaviour: str) -> None:
    report = updated(SAMPLES, algorithm=TRAINERS if behaviour == "trainer" else AlgorithmSettings())
    figures = expected(trained(SAMPLES), behaviour=behaviour)
    assert {name: report.metrics[name] for name in figures} == pytest.approx(figures, rel=1e-4)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_rollouts_of_each_staleness_have_their_own_figures_though_they_share_a_pass(staleness: int) -> None:
    report = updated(SAMPLES)
    mine = trained(SAMPLES, staleness)
    figures = expected(mine, behaviour="engine")
    found = report.by_staleness[staleness]
    assert {name: found[name] for name in figures} == pytest.approx(figures, rel=1e-4)
    assert (found["clipped_low"], found["clipped_high"]) == pytest.approx(clipped(mine, low=0.8, high=1.2))
    entropies = torch.cat([-(p.exp() * p).sum(-1) for p in (log_softmax_of(tiny_model(), one) for one in mine)])
    assert found["entropy"] == pytest.approx(float(entropies.mean()), rel=1e-4)
    assert found["trained_tokens"] == len(entropies)


def test_entropy_is_the_mean_over_the_tokens_that_were_looked_at_whatever_was_skipped() -> None:
    mine = trained(SAMPLES)
    entropies = torch.cat([-(p.exp() * p).sum(-1) for p in (log_softmax_of(tiny_model(), one) for one in mine)])
    for aggregation in ("token_mean", "seq_mean_token_mean", "fixed_length"):
        report = updated(SAMPLES, algorithm=AlgorithmSettings(aggregation=aggregation))
        assert report.metrics["entropy"] == pytest.approx(float(entropies.mean()), rel=1e-4)


def test_there_is_an_entry_for_each_staleness_that_was_trained_and_no_other() -> None:
    report = updated(SAMPLES)
    assert list(report.by_staleness) == [0, 1, 3]
    assert sum(found["trained_tokens"] for found in report.by_staleness.values()) == report.metrics["trained_tokens"]
    assert list(updated([one for one in SAMPLES if staleness_of(one) == 3]).by_staleness) == [3]


@pytest.mark.parametrize("cuts", [[3], [1, 2, 11, 12], list(range(1, 24))], ids=str)
@pytest.mark.parametrize("algorithm", [AlgorithmSettings(), TRAINERS], ids=["engine", "trainer"])
def test_the_figures_are_the_same_however_an_update_is_cut(cuts: list[int], algorithm: AlgorithmSettings) -> None:
    whole = updated(SAMPLES, algorithm=algorithm)
    parts = updated(SAMPLES, cuts, algorithm=algorithm, trainer=CUT_SMALL)
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-4, abs=1e-6)
    assert list(parts.by_staleness) == list(whole.by_staleness)
    for staleness, figures in whole.by_staleness.items():
        assert parts.by_staleness[staleness] == pytest.approx(figures, rel=1e-4, abs=1e-6)


def test_looking_changes_no_gradient() -> None:
    silent = [replace(one, rollout=replace(one.rollout, log_probs=None, policy_version=None)) for one in SAMPLES]
    assert updated(silent).grad_norm == updated(SAMPLES).grad_norm


def test_an_engine_that_agrees_with_the_trainer_leaves_no_difference() -> None:
    model = tiny_model()
    agreeing = []
    for one in trained(SAMPLES, 0):
        present = present_of(model, one)
        log_probs = [*[0.0] * (len(one.rollout.token_ids or ()) - len(present)), *present]
        agreeing.append(replace(one, rollout=replace(one.rollout, log_probs=log_probs)))
    metrics = updated(agreeing, uses_old=False).metrics
    assert metrics["engine_diff_max"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["behaviour_kl_k3"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["effective_share"] == pytest.approx(1.0, abs=1e-5)


# -- what there is nothing to say of --


def test_without_the_engines_log_probs_nothing_is_compared_and_the_rest_is_told() -> None:
    silent = [replace(one, rollout=replace(one.rollout, log_probs=None)) for one in SAMPLES]
    report = updated(silent)
    assert not {name for name in report.metrics if name.startswith(("engine_", "behaviour_")) or "share" in name}
    assert report.by_staleness[1]["clipped_low"] == updated(SAMPLES).by_staleness[1]["clipped_low"]


def test_an_update_without_a_pass_has_no_figures() -> None:
    zero = [replace(one, advantage=0.0) for one in SAMPLES]
    report = updated(zero)
    assert report.by_staleness == {}
    assert "engine_diff_mean" not in report.metrics


def test_a_rollout_without_a_version_counts_as_fresh() -> None:
    one = sample(rollout([1, 2], [3, 4], log_probs=[0.0, 0.0, -1.0, -2.0]))
    assert list(updated([one], uses_old=False).by_staleness) == [0]


@pytest.mark.parametrize("mask", [[0, 0, 1, 1, 1], [0, 1, 0, 0, 1]], ids=["one piece", "with gaps"])
@pytest.mark.parametrize("kind", [list, tuple, lambda values: torch.tensor(values).tolist()])
def test_the_engines_log_probs_are_those_of_the_sampled_tokens_wherever_they_stand(mask: list[int], kind: Any) -> None:
    all_of_them = [-0.5 * place for place in range(5)]
    of = rollout([1], [2, 3, 4, 5], response_mask=mask, log_probs=kind(all_of_them))
    metrics = updated([sample(of)], uses_old=False).metrics
    present = present_of(tiny_model(), sample(of))
    gaps = [
        abs(math.exp(mine) - math.exp(its))
        for mine, its in zip(present, [all_of_them[i] for i in range(5) if mask[i]], strict=True)
    ]
    assert metrics["engine_diff_mean"] == pytest.approx(statistics.mean(gaps), rel=1e-4)


def test_log_probs_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="as long as its token_ids, got 2 and 4"):
        updated([sample(rollout([1, 2], [3, 4], log_probs=[0.0, 0.0]))], uses_old=False)
