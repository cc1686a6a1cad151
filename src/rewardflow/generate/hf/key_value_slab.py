"""Keeps the keys and values of the rows that decode together, in one block of memory for each layer.

Always true: rows 0 to n - 1 are in use and end at the same column, so a step of decoding writes one column and reads
one window, and copies nothing but the row of a response that ended. Left of a row's own tokens the numbers are finite;
the caller masks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from rewardflow.errors import InvalidInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LEAST_GROWTH = 64


class KeyValueSlab(Cache):
    """A cache that a transformers model takes as `past_key_values`, for one new token a row.

    The caller calls `open_column` before it calls the model.
    """

    def __init__(self, max_rows: int, max_new_tokens: int = _LEAST_GROWTH, *, dtype: torch.dtype | None = None) -> None:
        """`max_new_tokens` is what one row may add: for short responses the block needs no more, and stays small.

        `dtype` is what attention computes in, if the model casts what it is given: nothing then needs more.
        """
        super().__init__(layers=[])
        self.max_rows = max_rows
        self.dtype = dtype
        self._least_growth = min(_LEAST_GROWTH, max_new_tokens)
        self.num_rows = 0
        self.start = 0
        self.end = 0
        self._num_columns = 0

    @property
    def width(self) -> int:
        """The width of the window that is read: at least as long as the longest row."""
        return self.end - self.start

    def append(self, prefill: DynamicCache, sources: Tensor) -> None:
        """Adds rows at the end. Each copies one row of a cache whose prompts were padded on the left."""
        if not self.layers:
            self.layers = [_SlabLayer(self) for _ in prefill.layers]
        width = prefill.get_seq_length()
        if not self.num_rows and width < self._num_columns:  # nothing to keep: begin anew at the left
            self.start = self.end = width
        self._reserve(left=width, right=1)
        self.start = min(self.start, self.end - width)
        rows = slice(self.num_rows, self.num_rows + len(sources))
        for own, layer in zip(self._slab_layers, prefill.layers, strict=True):
            own.write(rows, slice(self.end - width, self.end), layer, sources, self._num_columns)
        self.num_rows = rows.stop

    def open_column(self, longest: int) -> None:
        """Makes room for one more token in every row, which the model fills. `longest` counts that token."""
        self._reserve(left=0, right=1)
        self.end += 1
        self.start = self.end - longest

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Puts rows into the places of others, and keeps the first `num_rows`."""
        if len(sources):
            for layer in self._slab_layers:
                layer.move(sources, targets, slice(self.start, self.end))
        self.num_rows = num_rows
        if not num_rows:
            self.start = self.end

    @property
    def _slab_layers(self) -> Sequence[_SlabLayer]:
        return self.layers  # type: ignore[return-value]  # transformers' list may hold any kind

    def _reserve(self, left: int, right: int) -> None:
        """Makes room for columns before the window's end and behind it. Grows by half, so that it copies rarely."""
        if self.end >= left and self.end + right <= self._num_columns:
            return
        offset = max(left - self.width, 0)
        used = offset + self.width
        self._num_columns = used + max(right, used // 2, self._least_growth)
        for layer in filter(_SlabLayer.has_memory, self._slab_layers):
            layer.grow(slice(self.start, self.end), offset, self._num_columns)
        self.start, self.end = offset, used


class _SlabLayer(CacheLayerMixin):
    """One layer's block: row, head, column, channel. It starts with zeros, because a mask does not stop a NaN."""

    keys: Tensor
    values: Tensor

    def __init__(self, slab: KeyValueSlab) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._slab = slab

    def has_memory(self) -> bool:
        return self.is_initialized

    def write(self, rows: slice, columns: slice, layer: Any, sources: Tensor, num_columns: int) -> None:
        if not self.is_initialized:
            self.keys = self._zeros(layer.keys, num_columns)
            self.values = self._zeros(layer.values, num_columns)
            self.is_initialized = True
        self.keys[rows, :, columns] = layer.keys[sources].to(self.keys.dtype)
        self.values[rows, :, columns] = layer.values[sources].to(self.values.dtype)

    def move(self, sources: Tensor, targets: Tensor, columns: slice) -> None:
        for block in (self.keys[:, :, columns], self.values[:, :, columns]):
            block[targets] = block[sources]

    def grow(self, columns: slice, offset: int, num_columns: int) -> None:
        self.keys = self._grown(self.keys, columns, offset, num_columns)
        self.values = self._grown(self.values, columns, offset, num_columns)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        num_rows, start, end = self._slab.num_rows, self._slab.start, self._slab.end
        self.keys[:num_rows, :, end - 1 : end] = key_states
        self.values[:num_rows, :, end - 1 : end] = value_states
        return self.keys[:num_rows, :, start:end], self.values[:num_rows, :, start:end]

    def get_seq_length(self) -> int:
        """Leaves out the open column."""
        return self._slab.width - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slab.width, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """The name in older versions of transformers."""
        return self.get_max_length()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: `append` adds the prompts before the first token."""

    def _zeros(self, like: Tensor, num_columns: int) -> Tensor:
        _, num_heads, _, num_channels = like.shape
        dtype = self._slab.dtype or like.dtype
        return like.new_zeros(self._slab.max_rows, num_heads, num_columns, num_channels, dtype=dtype)

    def _grown(self, block: Tensor, columns: slice, offset: int, num_columns: int) -> Tensor:
        grown = self._zeros(block, num_columns)
        rows = self._slab.num_rows
        grown[:rows, :, offset : offset + columns.stop - columns.start] = block[:rows, :, columns]
        return grown


def check_cache_fits(config: Any) -> None:
    """Refuses models with layers other than attention over past tokens. The mask takes care of a sliding window."""
    is_attention = [isinstance(layer, DynamicLayer) for layer in DynamicCache(config=config).layers]
    if not all(is_attention):
        raise InvalidInput(
            "policy.model must keep its past as keys and values, "
            f"{config.model_type} has {is_attention.count(False)} layers with another kind of state"
        )
