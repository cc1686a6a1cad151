"""Adapters train alike in one process and on two ranks, beside a base that stays, and resume bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_ranks import alone as train_alone
from adapter_ranks import cases, run_rank
from rank_process import spawn_two

from rewardflow.policy.load_policy import load_policy

CASES = ["float32", "bfloat16"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def ranks(directory: Path) -> list[dict[str, Any]]:
    return spawn_two(run_rank, directory)


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    found = {}
    for name, settings in cases().items():
        folder = directory / f"alone_{name}"
        folder.mkdir()
        found[name] = train_alone(settings, folder)
    return found


@pytest.mark.parametrize("case", CASES)
def test_training_changes_adapters_and_nothing_else(case: str, alone: dict[str, Any], ranks: Any) -> None:
    for found in (alone[case], *(rank[case] for rank in ranks)):
        assert found["base_is_same"]
        assert any(one.abs().max() > 1e-3 for name, one in found["adapters"].items() if ".lora_B." in name)
        assert not torch.equal(torch.cat(found["log_probs"]), torch.cat(found["fresh"]))


@pytest.mark.parametrize("case", CASES)
def test_the_reference_is_the_policy_before_its_first_step(case: str, alone: dict[str, Any], ranks: Any) -> None:
    for found in (alone[case], *(rank[case] for rank in ranks)):
        assert torch.equal(torch.cat(found["reference"]), torch.cat(found["fresh"]))


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_has_adapters_and_their_optimizer_alone(case: str, alone: dict[str, Any], ranks: Any) -> None:
    for found in (alone[case], *(rank[case] for rank in ranks)):
        weights = [name for name in found["saved"] if name.startswith("model.")]
        assert len(weights) == 2 * 2 * 7
        assert all("lora_" in name for name in found["saved"])
        assert {name.rpartition(".")[2] for name in found["saved"] if name.startswith("optimizer.")} == {
            "exp_avg",
            "exp_avg_sq",
            "step",
        }


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_step_gives_the_same_adapters_bit_for_bit(case: str, alone: dict[str, Any], ranks: Any) -> None:
    for found in (alone[case], *(rank[case] for rank in ranks)):
        assert not all(torch.equal(one, found["adapters"][name]) for name, one in found["third"].items())
        assert all(torch.equal(one, found["third_again"][name]) for name, one in found["third"].items())


def test_two_ranks_train_the_adapters_of_one_process(alone: dict[str, Any], ranks: Any) -> None:
    for rank in ranks:
        for what in ("adapters", "sent"):
            for name, one in alone["float32"][what].items():
                torch.testing.assert_close(rank["float32"][what][name], one, rtol=1e-4, atol=1e-5)
        for what in ("fresh", "reference", "log_probs"):
            torch.testing.assert_close(rank["float32"][what], alone["float32"][what], rtol=1e-4, atol=1e-4)


def test_published_weights_are_merged_under_the_names_of_the_base(alone: dict[str, Any], ranks: Any) -> None:
    settings = cases()["float32"]
    plain = load_policy(settings.policy, seed=settings.seed).model
    names = [name for name, _ in (*plain.named_parameters(), *plain.named_buffers())]
    for case in CASES:
        for found in (alone[case], *(rank[case] for rank in ranks)):
            assert list(found["sent"]) == names
    base = dict(plain.named_parameters())
    sent = alone["float32"]["sent"]
    assert torch.equal(sent["model.embed_tokens.weight"], base["model.embed_tokens.weight"])
    assert not torch.equal(
        sent["model.layers.0.self_attn.q_proj.weight"], base["model.layers.0.self_attn.q_proj.weight"]
    )


def test_ranks_keep_what_does_not_train_in_the_dtype_that_they_compute_in(ranks: Any) -> None:
    assert ranks[0]["float32"]["base_dtypes"] == {torch.float32}
    assert ranks[0]["bfloat16"]["base_dtypes"] == {torch.bfloat16}
