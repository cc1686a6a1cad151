"""Two ranks with uneven work give what one process gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_process import cases, joined, run_rank, spawn_two, trained
from tiny_training import critic_part, tiny_model, weights

from rewardflow.settings.run_settings import CriticSettings
from rewardflow.train.fsdp2.sharding import Ranks, is_sharded, shard, whole

WITH_CRITIC = ["value_model", "value_head", "offloaded_value_model"]
EXACT = ["every_term", "skipping", "offload", *WITH_CRITIC]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    directory: Path = tmp_path_factory.mktemp("ranks")
    found = spawn_two(run_rank, directory)
    return {name: [rank[name] for rank in found] for name in cases()}


@pytest.fixture(scope="module")
def one_process() -> dict[str, dict[str, Any]]:
    return {name: trained(None, *case) for name, case in cases().items()}


@pytest.mark.parametrize("case", EXACT)
def test_two_ranks_with_uneven_work_train_the_weights_of_one_process(
    case: str, two_ranks: dict[str, list[dict[str, Any]]], one_process: dict[str, dict[str, Any]]
) -> None:
    expected = one_process[case]["weights"]
    learnt = (expected - weights(tiny_model())).norm()
    for rank in two_ranks[case]:
        assert (rank["weights"] - expected).norm() <= 1e-5 * learnt


@pytest.mark.parametrize("case", WITH_CRITIC)
def test_a_critic_that_is_spread_over_two_ranks_learns_what_it_learns_in_one_process(
    case: str, two_ranks: dict[str, list[dict[str, Any]]], one_process: dict[str, dict[str, Any]]
) -> None:
    expected, form = one_process[case]["critic"], "head" if case == "value_head" else "model"
    learnt = (expected - weights(critic_part(CriticSettings(form=form)).model)).norm()  # type: ignore[arg-type]
    assert learnt > 0
    for rank in two_ranks[case]:
        assert (rank["critic"] - expected).norm() <= 1e-5 * learnt
    found, whole_batch = joined(two_ranks[case], "values"), joined([one_process[case]], "values")
    torch.testing.assert_close(found, whole_batch, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", EXACT)
def test_both_ranks_report_the_whole_update(
    case: str, two_ranks: dict[str, list[dict[str, Any]]], one_process: dict[str, dict[str, Any]]
) -> None:
    first, second = (rank["reports"] for rank in two_ranks[case])
    assert first == second
    for found, expected in zip(first, one_process[case]["reports"], strict=True):
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4, abs=1e-6)
        assert list(found["by_staleness"]) == list(expected["by_staleness"])
        for staleness, figures in expected["by_staleness"].items():
            assert found["by_staleness"][staleness] == pytest.approx(figures, rel=1e-4, abs=1e-6)
        for report in (found, expected):
            del report["metrics"], report["by_staleness"]
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["log_probs", "reference"])
def test_each_rank_has_the_log_probs_of_its_own_rollouts(
    name: str, two_ranks: dict[str, list[dict[str, Any]]], one_process: dict[str, dict[str, Any]]
) -> None:
    found, expected = joined(two_ranks["every_term"], name), joined([one_process["every_term"]], name)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_every_pass_leaves_a_rank_its_part_of_the_gradient_alone(two_ranks: dict[str, list[dict[str, Any]]]) -> None:
    for rank in two_ranks["every_term"]:
        assert rank["are_reduced"] == [True, True, True]


@pytest.mark.parametrize("case", EXACT)
def test_log_probs_after_an_update_without_a_pass_are_those_of_the_updated_weights(
    case: str, two_ranks: dict[str, list[dict[str, Any]]], one_process: dict[str, dict[str, Any]]
) -> None:
    found, expected = joined(two_ranks[case], "after_coasting"), joined([one_process[case]], "after_coasting")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(found, joined(two_ranks[case], "log_probs"), atol=1e-2)


@pytest.mark.parametrize("case", [*EXACT, "bfloat16", "bfloat16_value_model"])
def test_ranks_make_the_same_number_of_passes(case: str, two_ranks: dict[str, list[dict[str, Any]]]) -> None:
    first, second = two_ranks[case]
    assert first["num_passes"] == second["num_passes"] > 0


def test_mixed_precision_stays_near_float32_and_keeps_float32_weights(
    two_ranks: dict[str, list[dict[str, Any]]], one_process: dict[str, dict[str, Any]]
) -> None:
    found = two_ranks["bfloat16"][0]["weights"]
    assert found.dtype == torch.float32
    norms = [report["grad_norm"] for report in two_ranks["bfloat16"][0]["reports"]]
    expected = [report["grad_norm"] for report in one_process["every_term"]["reports"]]
    assert norms[0] == pytest.approx(expected[0], rel=0.1)
    assert norms[0] != expected[0]


def test_one_rank_keeps_the_plain_module() -> None:
    model = tiny_model()
    ranks = Ranks(torch.device("cpu"))
    shard(model, ranks, compute=None)
    assert not is_sharded(model)
    assert (ranks.size, ranks.most(3)) == (1, 3)
    assert whole(ranks.sum(torch.ones(2))).tolist() == [1.0, 1.0]
