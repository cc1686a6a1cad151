"""Adds LoRA adapters to a model, and gives the weights that the model would have if they were merged.

Always true: only adapters train, in float32; the other weights never change. A fresh adapter changes no output: one of
its two matrices is 0, and the other depends on the seed and its name alone, so it is the same on every rank. Merged
weights have the names of the model without adapters, and are computed in one place, in float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra
from rewardflow.policy.weights_by_name import ALL_ROWS, WeightSource
from rewardflow.settings.run_settings import LoraSettings

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

_NAME = "default"  # of the one adapter, as peft calls it
_DOWN, _UP = f".lora_A.{_NAME}.", f".lora_B.{_NAME}."
_BASE = ".base_layer."


def add_adapters(model: PreTrainedModel, lora: LoraSettings, *, seed: int) -> None:
    """Adds an adapter to each layer that the settings name, in place, and freezes all other weights."""
    peft = import_extra("peft", "lora", "policy.lora")
    # Without memory, so that peft draws no random numbers.
    peft.inject_adapter_in_model(_peft_config(peft, model, lora), model, low_cpu_mem_usage=True)
    model.requires_grad_(False)
    is_outline = next(model.parameters()).is_meta
    for module_name, layer in adapted_layers(model):
        for part in ("lora_A", "lora_B"):
            linear = getattr(layer, part)[_NAME]
            name = f"{module_name}.{part}.{_NAME}.weight"
            start = linear.weight.float() if is_outline else starting_adapter(name, linear.weight.shape, seed)
            linear.weight = nn.Parameter(start.to(layer.base_layer.weight.device))


def starting_adapter(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Returns the weights that an adapter's matrix starts with; they do not depend on other random numbers."""
    if _UP in name:
        return torch.zeros(shape)
    own = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(own[:7], "big"))
    bound: float = shape[1] ** -0.5  # as an `nn.Linear` starts
    return torch.rand(shape, generator=generator).mul_(2 * bound).sub_(bound)


def _peft_config(peft: Any, model: PreTrainedModel, lora: LoraSettings) -> Any:
    targets = sorted({name.rpartition(".")[2] for name in _targets(model, lora)})
    path = getattr(model, "name_or_path", None) or None
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=path,
    )


def _targets(model: PreTrainedModel, lora: LoraSettings) -> list[str]:
    """Returns the names of the layers that get an adapter; the head is none of them."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    linear = [name for name, one in model.named_modules() if isinstance(one, nn.Linear) and one is not head]
    kinds = {name.rpartition(".")[2] for name in linear}
    unknown = sorted(set(lora.targets or ()) - kinds)
    if unknown or not linear:
        raise InvalidInput(
            "policy.lora.targets must be names of linear layers of the model other than its head, "
            f"got {', '.join(unknown) or 'a model without such layers'}; there are {', '.join(sorted(kinds)) or 'none'}"
        )
    return [name for name in linear if lora.targets is None or name.rpartition(".")[2] in lora.targets]


# -- names --


def is_adapter(name: str) -> bool:
    """Whether a weight of this name is part of an adapter."""
    return _DOWN in name or _UP in name


def name_without_adapters(name: str) -> str:
    """Returns the name of a weight in the model without adapters."""
    return name.replace(_BASE, ".")


def with_adapters(source: WeightSource, model: nn.Module, *, seed: int) -> WeightSource:
    """Gives the weights of a model with fresh adapters from those of the model without them."""
    shapes = {name: weight.shape for name, weight in model.named_parameters() if is_adapter(name)}

    def weight(name: str, rows: slice = ALL_ROWS, /) -> Tensor:
        if name in shapes:
            return starting_adapter(name, shapes[name], seed)[rows]
        return source(name_without_adapters(name), rows)

    return weight


# -- a model with adapters --


def adapted_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Returns peft's layers, each with its name; none for a model without adapters."""
    return [(name, one) for name, one in model.named_modules() if hasattr(one, "lora_A") and hasattr(one, "base_layer")]


def has_adapters(model: nn.Module) -> bool:
    return bool(adapted_layers(model))


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Lets the model compute as if it had no adapters. Entered without gradients, because none would flow to them."""
    layers = [layer for _, layer in adapted_layers(model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def plain_weights(
    model: nn.Module, whole: Callable[[Tensor], Tensor] = lambda weight: weight, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yields parameters and buffers under their names without adapters, which are merged; one at a time.

    `whole` gathers a weight that is spread over ranks. Parameters come in `dtype`, and are gathered in it unless
    something is merged into them.
    """
    layers = dict(adapted_layers(model))
    for name, weight in model.named_parameters():
        if is_adapter(name):
            continue
        layer = layers.get(name.removesuffix(f"{_BASE}weight")) if name.endswith(f"{_BASE}weight") else None
        if layer is None:
            yield name_without_adapters(name), whole(weight.detach().to(dtype or weight.dtype))
        else:
            merged = _merged(layer, whole(weight.detach()), whole)
            yield name_without_adapters(name), merged.to(dtype or merged.dtype)
    for name, buffer in model.named_buffers():
        yield name_without_adapters(name), whole(buffer.detach())


@torch.no_grad()
def _merged(layer: Any, base: Tensor, whole: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns the base's weight with the adapter in it, in float32."""
    up, down = (whole(part[_NAME].weight.detach()).float() for part in (layer.lora_B, layer.lora_A))
    return torch.addmm(base.float(), up, down, alpha=layer.scaling[_NAME])


def merge_adapters(model: nn.Module) -> None:
    """Merges the adapters into the weights, in place; afterwards the model is as if it never had any."""
    for _, layer in adapted_layers(model):
        base = layer.base_layer.weight
        base.data.copy_(_merged(layer, base.detach(), lambda weight: weight))
    remove_adapters(model)


def remove_adapters(model: nn.Module) -> None:
    """Puts the layers back that had adapters, in place. Their weights are those that never changed."""
    layers = adapted_layers(model)
    for name, layer in layers:
        parent, _, field = name.rpartition(".")
        setattr(model.get_submodule(parent), field, layer.base_layer)
    if layers:
        vars(model).pop("peft_config", None)
        model.requires_grad_(True)


def save_adapters(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    """Writes the adapters as peft reads them: weights and `adapter_config.json`."""
    from safetensors.torch import save_file

    weights = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": weight.detach().to(dtype).contiguous()
        for name, weight in model.named_parameters()
        if is_adapter(name)
    }
    config = model.peft_config[_NAME]
    config.inference_mode = True  # whoever loads them goes on to train only if they say so
    config.save_pretrained(folder)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
