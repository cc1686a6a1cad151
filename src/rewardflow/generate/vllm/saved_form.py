"""Turns weights as a model has them into those that transformers would save, which vLLM reads.

Always true: the weights may come in any order, and each is passed on as soon as all are there that are saved with it;
names, shapes and numbers are those of `save_pretrained`; floats are in the dtype of the engine. Buffers that are not
saved, such as computed tables, are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from rewardflow.errors import FlowError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BLOCK = re.compile(r".*?\.\d+(?=\.)")  # up to the number of a layer


@dataclass(frozen=True, slots=True)
class SavedSize:
    """The bytes of all weights as they are saved, and of the largest one."""

    num_bytes: int
    largest_bytes: int


class SavedForm:
    """Converts the weights of one update. It reads only names and shapes of `model`, which may be an outline."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype
        state = saved_state(model)
        sizes = [math.prod(one.shape) * self._dtype_of(one).itemsize for one in state.values()]
        self.size = SavedSize(sum(sizes), max(sizes))
        self._ignored = {name for name, _ in model.named_buffers()} - state.keys()
        self._unit_of = _units(model, state)
        self._missing: set[str] = set()
        self._waiting: dict[str, dict[str, Tensor]] = {}
        self._left: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        """Begins an update, in which every weight comes once."""
        self._missing = set(self._unit_of)
        self._waiting = {}
        self._left = {}
        for unit in self._unit_of.values():
            self._left[unit] = self._left.get(unit, 0) + 1

    @torch.no_grad()
    def put(self, name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yields the saved weights that this one completes."""
        if name in self._ignored:
            return
        if name not in self._missing:
            known = "twice" if name in self._unit_of else "which is none of them"
            raise FlowError(f"published weights must be those of the policy, each once, got {name} {known}")
        self._missing.remove(name)
        unit = self._unit_of[name]
        self._waiting.setdefault(unit, {})[name] = weight
        self._left[unit] -= 1
        if self._left[unit] == 0:
            for saved, one in revert_weight_conversion(self._model, self._waiting.pop(unit)).items():
                yield saved, one.detach().to(self._dtype_of(one)).contiguous()

    def check_complete(self) -> None:
        if self._missing:
            raise FlowError(
                f"published weights must be all of the policy's, got none for {', '.join(sorted(self._missing)[:3])} "
                f"and {max(0, len(self._missing) - 3)} others"
            )

    def _dtype_of(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype


def saved_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns parameters and persistent buffers, each once: tied weights have one name."""
    once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in once}


def _units(model: PreTrainedModel, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Says what each weight is converted with: itself, or its whole block if transformers saves other weights."""
    outline = {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in state.items()}
    if revert_weight_conversion(model, outline).keys() == outline.keys():
        return {name: name for name in state}
    blocks = {name: _BLOCK.match(name) for name in state}
    return {name: name if block is None else block[0] for name, block in blocks.items()}
