"""Every layout gives what one process gives: log-probs, training, checkpoints, exported weights."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import FAMILIES, LAYOUTS, SAVED_AT, gone_on, make_model, micro_batches, one_process, samples_of, weights_of
from megatron_rank import head_and_tokens, head_loss, spawn

from rewardflow.algo.token_softmax import token_softmax

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, dict[str, Any]]:
    return {family: one_process(family, directory / "one" / family) for family in FAMILIES}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ranks(layout: str, directory: Path, alone: object) -> Ranks:
    (directory / layout).mkdir()
    return spawn(layout, directory / layout)


each_family = pytest.mark.parametrize("family", FAMILIES)


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> bool:
    assert found.keys() == expected.keys()
    return all((found[name] - expected[name]).abs().max() <= tolerance for name in expected)


@each_family
def test_weights_go_in_and_come_out_exactly(family: str, ranks: Ranks) -> None:
    expected = weights_of(make_model(family))
    for rank in ranks:
        assert rank[family]["initial"].keys() == expected.keys()
        assert all(torch.equal(rank[family]["initial"][name], expected[name]) for name in expected)


@each_family
@pytest.mark.parametrize("of", ["policy", "reference"])
def test_log_probs_are_those_of_transformers(
    family: str, of: str, layout: str, ranks: Ranks, alone: dict[str, dict[str, Any]]
) -> None:
    expected = alone[family]["log_probs"][of]
    numbers = {id(sample): number for number, sample in enumerate(samples_of(0))}
    assert len(numbers) == len(expected)
    case = LAYOUTS[layout]
    for rank in ranks:
        replica = rank["place"][3]
        sizes = [len(part) for one in range(replica) for part in micro_batches(0, one, case.num_replicas)]
        mine = expected[sum(sizes) :][: len(rank[family]["log_probs"][of])]
        torch.testing.assert_close(rank[family]["log_probs"][of], mine, rtol=0, atol=1e-5)


@each_family
def test_five_steps_of_training_are_those_of_one_process(
    family: str, ranks: Ranks, alone: dict[str, dict[str, Any]]
) -> None:
    expected = alone[family]
    for rank in ranks:
        for found, report in zip(rank[family]["reports"], expected["reports"], strict=True):
            assert found.metrics == pytest.approx(report.metrics, rel=1e-4, abs=1e-4)
            assert found.by_staleness.keys() == report.by_staleness.keys()
            assert found.grad_norm == pytest.approx(report.grad_norm, rel=1e-4)
            assert (found.num_sequences, found.num_tokens, found.lr) == (
                report.num_sequences,
                report.num_tokens,
                report.lr,
            )
        assert close(rank[family]["weights"], expected["weights"], 2e-5)


@each_family
def test_every_rank_reports_the_same(family: str, ranks: Ranks) -> None:
    for rank in ranks[1:]:
        assert rank[family]["reports"] == ranks[0][family]["reports"]
        assert rank[family]["statistics"].num_passes == ranks[0][family]["statistics"].num_passes


@each_family
def test_a_resumed_run_is_the_same_run_bit_for_bit(family: str, ranks: Ranks) -> None:
    for rank in ranks:
        whole, resumed = rank[family], rank[family]["resumed"]
        assert resumed["reports"] == whole["reports"][SAVED_AT:]
        assert all(torch.equal(resumed["weights"][name], whole["weights"][name]) for name in whole["weights"])


@each_family
def test_ranks_go_on_from_a_checkpoint_of_the_other_trainer(
    family: str, ranks: Ranks, alone: dict[str, dict[str, Any]]
) -> None:
    for rank in ranks:
        continued = rank[family]["continued"]
        for found, report in zip(continued["reports"], alone[family]["reports"][SAVED_AT:], strict=True):
            assert found.metrics == pytest.approx(report.metrics, rel=1e-4, abs=1e-4)
        assert close(continued["weights"], alone[family]["weights"], 2e-5)


@each_family
def test_the_other_trainer_goes_on_from_a_checkpoint_of_ranks(
    family: str, layout: str, ranks: Ranks, directory: Path
) -> None:
    found = gone_on(family, directory / layout / "state" / family)
    for report, expected in zip(found["reports"], ranks[0][family]["reports"][SAVED_AT:], strict=True):
        assert report.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-4)
    assert close(found["weights"], ranks[0][family]["weights"], 2e-5)


@each_family
def test_transformers_and_ranks_load_what_ranks_export(family: str, layout: str, ranks: Ranks, directory: Path) -> None:
    original = make_model(family)
    folder = directory / layout / "export" / family
    original.config.save_pretrained(folder)
    loaded = type(original).from_pretrained(folder)
    assert close(weights_of(loaded), weights_of(original), 0.0)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert all(close(rank["read"][family], weights_of(original), 0.0) for rank in ranks)


def test_the_norm_is_that_of_the_whole_update_however_it_is_cut(ranks: Ranks, alone: dict[str, dict[str, Any]]) -> None:
    expected = alone["qwen2"]["reports"][0].grad_norm
    for rank in ranks:
        for name in ("cut", "whole", "recomputed", "offload"):
            assert rank["norms"][name] == pytest.approx(expected, rel=1e-5), name


def test_bfloat16_stays_near_and_keeps_float32_weights(ranks: Ranks, alone: dict[str, dict[str, Any]]) -> None:
    expected = alone["qwen2"]["reports"][0].grad_norm
    for rank in ranks:
        assert rank["norms"]["bfloat16"] == pytest.approx(expected, rel=0.1)
        assert rank["norms"]["bfloat16"] != expected
        assert rank["norms"]["dtypes"] <= {torch.float32}


def test_updates_without_a_verdict_or_a_finite_gradient_change_nothing(ranks: Ranks) -> None:
    for rank in ranks:
        empty, broken = rank["left_out"]["metrics"]
        assert (empty["skipped_empty"], broken["skipped_nonfinite"]) == (1.0, 1.0)
        assert rank["left_out"]["same"]
        statistics = rank["left_out"]["statistics"]
        assert (statistics.num_updates, statistics.num_empty_updates, statistics.num_nonfinite_updates) == (0, 1, 1)


@pytest.mark.parametrize("blocks", ["blocks", "at_once"])
def test_shared_vocabularies_have_the_log_probs_and_gradients_of_whole_ones(blocks: str, ranks: Ranks) -> None:
    hidden_ND, weight_VD, token_ids_N = head_and_tokens()
    logits = (hidden_ND.requires_grad_(), weight_VD.requires_grad_())
    log_probs_N, entropy_N = token_softmax(
        torch.nn.functional.linear(*logits), token_ids_N, temperature=0.7, entropy="trained"
    )
    head_loss(log_probs_N, entropy_N).backward()
    found = {rank["place"][0]: rank["vocabulary"][blocks] for rank in ranks}
    for one in found.values():
        torch.testing.assert_close(one["log_probs"], log_probs_N, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one["entropy"], entropy_N, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one["hidden"], hidden_ND.grad, rtol=1e-5, atol=1e-5)
    joined_VD = torch.cat([found[number]["weight"] for number in sorted(found)])
    torch.testing.assert_close(joined_VD, weight_VD.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_few_logits_at_a_time_give_what_all_of_them_give(dtype: str, tolerance: float, ranks: Ranks) -> None:
    for rank in ranks:
        every, few = (rank["few_logits"][dtype, name] for name in ("all", "few"))
        assert len(few["scores"]) == (2 if few["is_last"] else 0)
        torch.testing.assert_close(few["scores"], every["scores"], rtol=tolerance, atol=tolerance)
        for name, gradient in every["gradients"].items():
            error = (few["gradients"][name] - gradient).norm() / gradient.norm().clamp(min=1e-6)
            assert error <= tolerance, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_tensor_of_a_pass_has_an_entry_for_every_token_and_word(dtype: str, ranks: Ranks) -> None:
    for rank in ranks:
        every, few = (rank["few_logits"][dtype, name] for name in ("all", "few"))
        assert not few["whole"]
        assert bool(every["whole"]) == every["is_last"]  # such a tensor would be seen


def test_ranks_stand_in_different_places(layout: str, ranks: Ranks) -> None:
    sizes = LAYOUTS[layout].megatron
    axes = (sizes.tensor_parallel, sizes.pipeline_parallel, sizes.context_parallel, LAYOUTS[layout].num_replicas)
    assert sorted(rank["place"] for rank in ranks) == list(itertools.product(*map(range, axes)))
