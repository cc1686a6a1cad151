"""Models that ranks read in parts are the models that are loaded whole and spread then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from loading_ranks import FOLDERS, cases, found_in, run_rank
from rank_process import spawn_two
from torch import nn
from transformers import Qwen2ForCausalLM

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.policy.load_policy import load_policy
from rewardflow.policy.outline import outlined
from rewardflow.policy.weights_by_name import named
from rewardflow.settings.run_settings import PolicySettings
from rewardflow.train.fsdp2.backend import BACKEND
from rewardflow.train.fsdp2.sharded_loading import load_sharded
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.fsdp2.trainer import TorchTrainer

CASES = ["built", *FOLDERS, "bfloat16", "other_critic"]
MODELS = ["policy", "reference", "critic"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a model with an own head and rotary embeddings that are scaled, and one whose head is its embedding."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(FOLDERS):
        policy = load_policy(PolicySettings(), seed=seed)
        config = policy.model.config
        config.tie_word_embeddings = name == "tied"
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / name)
        policy.tokenizer.save_pretrained(folder / name)
    file = folder / "untied" / "config.json"
    content = json.loads(file.read_text())
    content["rope_scaling"] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    content["rope_parameters"] = content["rope_scaling"]
    file.write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def ranks(directory: Path) -> list[dict[str, Any]]:
    return spawn_two(run_rank, directory)


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    found = {}
    for name, settings in cases(directory).items():
        policy = load_policy(settings.policy, seed=settings.seed)
        with (
            DeviceThread("trainer") as thread,
            BACKEND.open_alone(settings, policy, thread, torch.device("cpu")) as trainer,
        ):
            assert isinstance(trainer, TorchTrainer)
            found[name] = found_in(trainer)
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("case", CASES)
def test_every_weight_and_buffer_is_that_of_a_model_that_is_loaded_whole(
    case: str, model: str, ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    expected = alone[case][model]
    for rank in ranks:
        found = rank[case][model]
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name].to(tensor.dtype), tensor), name


@pytest.mark.parametrize("case", CASES)
def test_ranks_send_the_weights_that_one_process_sends(
    case: str, ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    for rank in ranks:
        assert rank[case]["sent"].keys() == alone[case]["sent"].keys()
        assert all(torch.equal(rank[case]["sent"][name], one) for name, one in alone[case]["sent"].items())


@pytest.mark.parametrize("case", ["built", *FOLDERS, "other_critic"])
@pytest.mark.parametrize("what", ["log_probs", "reference_log_probs", "values"])
def test_passes_find_what_they_find_in_one_process(
    case: str, what: str, ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank[case][what], alone[case][what], rtol=1e-4, atol=1e-4)


def test_all_models_are_spread_and_tied_weights_stay_tied(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert all(all(found["are_sharded"]) for found in rank.values())
        assert [rank[name]["is_tied"] for name in FOLDERS] == [False, True]


def test_a_reference_in_bfloat16_has_the_log_probs_that_fsdp2_would_compute_from_float32(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        found = rank["bfloat16"]
        assert {one.dtype for name, one in found["reference"].items() if "inv_freq" not in name} == {torch.bfloat16}
        for reference, policy in zip(found["reference_log_probs"], found["log_probs"], strict=True):
            assert torch.equal(reference, policy)


def test_buffers_that_files_hold_are_read() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3))
            self.register_buffer("saved", torch.zeros(2))
            self.register_buffer("computed", torch.ones(2), persistent=False)

    model = outlined(Model)
    stored = {"weight": torch.tensor([1.0, 2, 3]), "saved": torch.tensor([4.0, 5])}
    load_sharded(model, named(stored), Ranks(torch.device("cpu")), compute=None)
    found = {name: one.tolist() for name, one in (*model.named_parameters(), *model.named_buffers())}
    assert found == {"weight": [1.0, 2, 3], "saved": [4.0, 5], "computed": [1.0, 1]}
