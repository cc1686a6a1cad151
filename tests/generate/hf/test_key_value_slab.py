"""The slab of keys and values, checked against plain lists of what each row should hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, MambaConfig, Qwen2Config

from rewardflow.errors import InvalidInput
from rewardflow.generate.hf.key_value_slab import KeyValueSlab, check_cache_fits

MAX_ROWS = 6


class Twin:
    """A slab beside the lists that it should agree with. A token's key is its number, its value the negative."""

    def __init__(self, max_new_tokens: int = 64) -> None:
        self.slab = KeyValueSlab(MAX_ROWS, max_new_tokens)
        self.rows: list[list[float]] = []
        self.next_token = 1.0

    def new_token(self) -> float:
        self.next_token += 1.0
        return self.next_token

    def append(self, lengths: list[int]) -> None:
        """Each prompt becomes two rows, as far as there is room."""
        prompts = [[self.new_token() for _ in range(length)] for length in lengths]
        sources = [number for number in range(len(prompts)) for _ in range(2)][: MAX_ROWS - len(self.rows)]
        if not sources:
            return
        cache, width = DynamicCache(), max(lengths)
        padded = torch.tensor([[-99.0] * (width - len(prompt)) + prompt for prompt in prompts])
        cache.update(as_states(padded), as_states(-padded), 0)
        self.slab.append(cache, torch.tensor(sources))
        self.rows += [list(prompts[source]) for source in sources]

    def drop(self, places: list[int]) -> None:
        num_rows = len(self.rows) - len(places)
        targets = [place for place in places if place < num_rows]
        sources = [place for place in range(num_rows, len(self.rows)) if place not in places]
        for target, source in zip(targets, sources, strict=True):
            self.rows[target] = self.rows[source]
        del self.rows[num_rows:]
        self.slab.move(torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64), num_rows)

    def step(self) -> None:
        """One token for every row, and a look at all of them."""
        for row in self.rows:
            row.append(self.new_token())
        self.slab.open_column(max(map(len, self.rows)))
        new = torch.tensor([[row[-1]] for row in self.rows])
        keys, values = self.slab.update(as_states(new), as_states(-new), 0)
        assert keys.shape == values.shape == (len(self.rows), 2, max(map(len, self.rows)), 3)
        for place, row in enumerate(self.rows):
            assert keys[place, 1, -len(row) :, 2].tolist() == row
            assert values[place, 1, -len(row) :, 2].tolist() == [-token for token in row]
        assert keys.isfinite().all()


def as_states(tokens: Tensor) -> Tensor:
    """Two heads and three channels of the same."""
    return tokens[:, None, :, None].expand(-1, 2, -1, 3).clone()


@given(st.data())
def test_every_row_keeps_its_own_tokens_whatever_comes_and_goes(data: st.DataObject) -> None:
    twin = Twin(data.draw(st.sampled_from((1, 4, 64))))  # a row may outgrow what the slab reserved for it
    for _ in range(data.draw(st.integers(1, 8))):
        if len(twin.rows) < MAX_ROWS:
            twin.append(data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=3)))
        for _ in range(data.draw(st.integers(0, 20))):
            twin.step()
        places = range(len(twin.rows))
        twin.drop(sorted(data.draw(st.sets(st.sampled_from(places)) if twin.rows else st.just(set()))))


def test_memory_is_reused_when_the_batch_was_empty() -> None:
    twin = Twin()
    twin.append([5])
    twin.step()
    layer = twin.slab.layers[0]
    before = layer.keys.data_ptr()
    for _ in range(50):
        for _ in range(20):
            twin.step()
        twin.drop([0, 1])
        twin.append([5])
    assert layer.keys.data_ptr() == before


def test_short_responses_take_little_memory() -> None:
    few, many = Twin(max_new_tokens=4), Twin(max_new_tokens=1000)
    for twin in (few, many):
        twin.append([5])
        twin.step()
    assert few.slab.layers[0].keys.shape[2] == 5 + 4
    assert many.slab.layers[0].keys.shape[2] == 5 + 64


def test_keys_and_values_take_the_room_of_what_attention_computes_in() -> None:
    slab, cache = KeyValueSlab(MAX_ROWS, dtype=torch.bfloat16), DynamicCache()
    cache.update(as_states(torch.ones(1, 3)), as_states(torch.ones(1, 3)), 0)
    slab.append(cache, torch.tensor([0, 0]))
    slab.open_column(4)
    past = slab.update(as_states(torch.ones(2, 1)), as_states(torch.ones(2, 1)), 0)
    assert [one.dtype for one in past] == [torch.bfloat16] * 2
    assert all(bool((one == 1).all()) for one in past)


def test_a_model_whose_past_is_no_keys_and_values_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mamba has 2 layers with another kind of state"):
        check_cache_fits(MambaConfig(num_hidden_layers=2))
    check_cache_fits(Qwen2Config(num_hidden_layers=2, use_sliding_window=True, max_window_layers=1))
