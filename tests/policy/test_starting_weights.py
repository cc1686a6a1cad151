"""The weights that a rank starts from: those of the policy, read from a folder one at a time where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hub_cache import cached_on_hub
from safetensors.torch import load_file, save_file

from rewardflow.errors import InvalidInput
from rewardflow.policy.hub_snapshot import snapshot_folder
from rewardflow.policy.load_policy import load_policy
from rewardflow.policy.starting_weights import StartingWeights
from rewardflow.settings.run_settings import PolicySettings


def saved_in(folder: Path) -> Path:
    policy = load_policy(PolicySettings(), seed=3)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a tiny model in a cache of the hub, which is all that there is: nothing is asked over the network."""
    return cached_on_hub(tmp_path, monkeypatch, saved_in)


def assert_starts_like_a_loaded_policy(settings: PolicySettings) -> None:
    starting = StartingWeights.read(settings, seed=3)
    loaded = load_policy(settings, seed=3).model
    assert starting.policy.model.config.to_dict() == loaded.config.to_dict()
    assert all(weight.is_meta for weight in starting.policy.model.parameters())
    for name, weight in loaded.named_parameters():
        found = starting.source(name)
        assert found.dtype == weight.dtype
        assert torch.equal(found, weight)
        assert torch.equal(starting.source(name, slice(1, 3)), weight[1:3])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_gives_what_a_loaded_policy_has(dtype: str, tmp_path: Path) -> None:
    assert_starts_like_a_loaded_policy(PolicySettings(model=str(saved_in(tmp_path)), dtype=dtype))


def test_a_policy_that_is_built_and_not_read_is_built() -> None:
    assert_starts_like_a_loaded_policy(PolicySettings())


def test_a_weight_of_a_folder_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    starting = StartingWeights.read(PolicySettings(model=str(saved_in(tmp_path))), seed=3)
    starting.source("model.norm.weight")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        starting.source("model.norm.weight")


def test_a_name_on_the_hub_gives_what_a_loaded_policy_has(hub_name: str) -> None:
    assert_starts_like_a_loaded_policy(PolicySettings(model=hub_name))


def test_a_weight_of_a_name_on_the_hub_is_read_from_the_cache_when_it_is_asked_for(hub_name: str) -> None:
    starting = StartingWeights.read(PolicySettings(model=hub_name), seed=3)
    starting.source("model.norm.weight")
    (snapshot_folder(hub_name) / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        starting.source("model.norm.weight")


def test_weights_under_other_names_than_the_model_gives_them_are_left_to_transformers(tmp_path: Path) -> None:
    folder = saved_in(tmp_path)
    stored = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("model."): weight for name, weight in stored.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    assert_starts_like_a_loaded_policy(PolicySettings(model=str(folder)))


def test_a_folder_in_shards_gives_what_a_loaded_policy_has_whatever_else_is_in_it(tmp_path: Path) -> None:
    policy = load_policy(PolicySettings(), seed=3)
    policy.model.save_pretrained(tmp_path, max_shard_size="50KB")
    policy.tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    averaged = {name: weight + 1 for name, weight in policy.model.state_dict().items()}
    save_file(averaged, tmp_path / "model_ema.safetensors")
    assert_starts_like_a_loaded_policy(PolicySettings(model=str(tmp_path)))


def test_weights_of_other_shapes_than_the_models_are_left_to_transformers_which_names_them(tmp_path: Path) -> None:
    folder = saved_in(tmp_path)
    stored = load_file(folder / "model.safetensors")
    longer = {name: torch.cat([weight, weight]) for name, weight in stored.items() if name == "lm_head.weight"}
    save_file({**stored, **longer}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInput, match=r"every weight .* lm_head.weight of \(144, 64\) for \(72, 64\)"):
        StartingWeights.read(PolicySettings(model=str(folder)), seed=3)


def test_a_model_that_lacks_a_weight_is_refused_and_not_filled_with_random_numbers(tmp_path: Path) -> None:
    folder = saved_in(tmp_path)
    stored = load_file(folder / "model.safetensors")
    del stored["model.layers.0.mlp.up_proj.weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    for read in (load_policy, StartingWeights.read):
        with pytest.raises(InvalidInput, match=r"got .* with no model\.layers\.0\.mlp\.up_proj\.weight"):
            read(PolicySettings(model=str(folder)), seed=3)
