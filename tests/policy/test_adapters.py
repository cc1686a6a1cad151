"""Adapters start without effect, are alone in training, and merge into the weights that they stand beside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.policy.adapters import (
    add_adapters,
    has_adapters,
    is_adapter,
    merge_adapters,
    name_without_adapters,
    plain_weights,
    remove_adapters,
    save_adapters,
    starting_adapter,
    with_adapters,
    without_adapters,
)
from rewardflow.policy.load_policy import Policy, load_policy, outline_policy
from rewardflow.policy.weights_by_name import weights_of
from rewardflow.settings.run_settings import LoraSettings, PolicySettings

LORA = LoraSettings(rank=4, alpha=8)
TOKENS = torch.arange(24).reshape(3, 8) % 11


def loaded(lora: LoraSettings | None = None) -> Policy:
    policy = load_policy(PolicySettings(), seed=0)
    if lora is not None:
        add_adapters(policy.model, lora, seed=5)
    return policy


def log_probs(policy: Policy) -> Tensor:
    with torch.no_grad():
        return policy.model(input_ids=TOKENS).logits.log_softmax(-1)


def disturb(policy: Policy) -> None:
    """Gives every adapter an effect, as training would."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if is_adapter(name):
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))


def test_a_fresh_adapter_changes_no_output_and_no_random_numbers() -> None:
    torch.manual_seed(7)
    before = torch.rand(3)
    torch.manual_seed(7)
    policy = loaded()
    torch.manual_seed(7)
    add_adapters(policy.model, LORA, seed=5)
    assert torch.equal(torch.rand(3), before)
    assert torch.equal(log_probs(policy), log_probs(loaded()))


def test_only_adapters_train_and_every_linear_layer_but_the_head_has_one() -> None:
    model = loaded(LORA).model
    assert {name for name, one in model.named_parameters() if one.requires_grad} == {
        name for name, _ in model.named_parameters() if is_adapter(name)
    }
    assert sum(is_adapter(name) for name, _ in model.named_parameters()) == 2 * 2 * 7  # two layers of seven
    assert not has_adapters(model.get_output_embeddings())


def test_targets_choose_the_layers() -> None:
    model = loaded(LoraSettings(rank=4, targets=("q_proj", "v_proj"))).model
    assert {name.split(".")[4] for name, _ in model.named_parameters() if is_adapter(name)} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("target", ["qproj", "lm_head", "embed_tokens"])
def test_a_target_that_is_no_linear_layer_is_refused_with_those_that_are(target: str) -> None:
    with pytest.raises(InvalidInput, match=rf"policy.lora.targets .* got {target}; there are down_proj, gate_proj"):
        loaded(LoraSettings(targets=(target,)))


def test_adapters_start_from_the_seed_and_their_name_alone() -> None:
    model = loaded(LORA).model
    for name, weight in model.named_parameters():
        if is_adapter(name):
            assert torch.equal(weight, starting_adapter(name, weight.shape, 5))
    downs = [weight for name, weight in model.named_parameters() if ".lora_A." in name and weight.shape == (4, 64)]
    assert not any(torch.equal(downs[0], other) for other in downs[1:])
    other = loaded()
    add_adapters(other.model, LORA, seed=6)
    assert not torch.equal(downs[0], next(w for n, w in other.model.named_parameters() if ".lora_A." in n))


def test_merged_and_unmerged_log_probs_agree() -> None:
    policy = loaded(LORA)
    disturb(policy)
    unmerged = log_probs(policy)
    assert (unmerged - log_probs(loaded())).abs().max() > 0.01
    merge_adapters(policy.model)
    assert not has_adapters(policy.model)
    torch.testing.assert_close(log_probs(policy), unmerged, atol=1e-5, rtol=1e-5)


def test_merged_weights_have_the_names_order_and_shapes_of_the_model_without_adapters() -> None:
    policy = loaded(LORA)
    disturb(policy)
    told = dict(plain_weights(policy.model))
    plain = {name: one.shape for model in [loaded().model] for name, one in plain_weights(model)}
    assert {name: one.shape for name, one in told.items()} == plain
    assert list(told) == list(plain)
    merge_adapters(policy.model)
    for name, weight in policy.model.named_parameters():
        assert torch.equal(told[name], weight), name


def test_weights_are_asked_for_in_a_dtype_and_buffers_stay_as_they_are() -> None:
    policy = loaded(LORA)
    disturb(policy)
    exact, rounded = dict(plain_weights(policy.model)), dict(plain_weights(policy.model, dtype=torch.bfloat16))
    buffers = {name for name, _ in policy.model.named_buffers()}
    assert exact.keys() == rounded.keys()
    assert buffers
    for name, weight in exact.items():
        assert torch.equal(rounded[name], weight if name in buffers else weight.bfloat16()), name


def test_without_adapters_the_model_computes_as_its_base_and_trains_as_before() -> None:
    policy = loaded(LORA)
    disturb(policy)
    with without_adapters(policy.model):
        assert torch.equal(log_probs(policy), log_probs(loaded()))
    assert not torch.equal(log_probs(policy), log_probs(loaded()))
    assert all(one.requires_grad == is_adapter(name) for name, one in policy.model.named_parameters())


def test_a_model_whose_adapters_are_removed_is_the_base() -> None:
    policy = loaded(LORA)
    disturb(policy)
    remove_adapters(policy.model)
    base = dict(loaded().model.named_parameters())
    assert all(torch.equal(one, base[name]) for name, one in policy.model.named_parameters())
    assert list(dict(policy.model.named_parameters())) == list(base)
    assert all(one.requires_grad for one in policy.model.parameters())


def test_gradients_of_adapters_follow_from_the_gradient_of_the_whole_weight() -> None:
    """W + s B A has the gradient G, so A has s B^T G and B has s G A^T."""
    policy = loaded(LORA)
    disturb(policy)
    adapted = dict(policy.model.named_parameters())
    policy.model(input_ids=TOKENS).logits.log_softmax(-1)[..., 3].sum().backward()
    merged = loaded(LORA)
    merged.model.load_state_dict(policy.model.state_dict())
    merge_adapters(merged.model)
    merged.model(input_ids=TOKENS).logits.log_softmax(-1)[..., 3].sum().backward()
    whole = dict(merged.model.named_parameters())
    scale = LORA.alpha / LORA.rank
    downs = [name for name in adapted if ".lora_A." in name]
    assert len(downs) == 14
    for name in downs:
        down, up = adapted[name], adapted[name.replace("lora_A", "lora_B")]
        gradient = whole[name.replace("lora_A.default.", "")].grad
        torch.testing.assert_close(down.grad, scale * up.detach().T @ gradient, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(up.grad, scale * gradient @ down.detach().T, atol=1e-4, rtol=1e-4)


def test_an_outline_has_adapters_without_memory_and_its_source_gives_what_they_start_with() -> None:
    outline, whole = outline_policy(PolicySettings()).model, loaded(LORA).model
    add_adapters(outline, LORA, seed=5)
    source = with_adapters(weights_of(loaded().model), outline, seed=5)
    expected = dict(whole.named_parameters())
    for name, one in outline.named_parameters():
        assert one.is_meta
        assert one.dtype == torch.float32
        assert one.requires_grad == expected[name].requires_grad
        assert torch.equal(source(name), expected[name])
        assert torch.equal(source(name, slice(1, 3)), expected[name][1:3])
    assert name_without_adapters("a.q_proj.base_layer.bias") == "a.q_proj.bias"


def test_a_base_of_half_the_size_has_adapters_in_float32() -> None:
    policy = load_policy(PolicySettings(dtype="bfloat16"), seed=0)
    add_adapters(policy.model, LORA, seed=5)
    dtypes = {is_adapter(name): one.dtype for name, one in policy.model.named_parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}


def test_peft_reads_what_is_saved_and_computes_the_same(tmp_path: Path) -> None:
    import peft

    policy = loaded(LORA)
    disturb(policy)
    save_adapters(policy.model, tmp_path, torch.float32)
    read = peft.PeftModel.from_pretrained(loaded().model, tmp_path)
    assert read.peft_config["default"].r == 4
    with torch.no_grad():
        found = read(input_ids=TOKENS).logits.log_softmax(-1)
    assert torch.equal(found, log_probs(policy))
