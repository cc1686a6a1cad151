"""Ranks make the same number of passes, and what they find goes back to its row."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.packing import TokenRow
from rewardflow.train.passes import by_row, even_passes

rows = st.lists(
    st.builds(
        lambda prompt, response: TokenRow(range(prompt + response), range(prompt, prompt + response)),
        st.integers(1, 5),
        st.integers(0, 5),
    ),
    max_size=8,
)


@given(rows, st.integers(1, 20))
def test_what_passes_find_is_put_back_in_the_order_of_the_rows(rows: list[TokenRow], budget: int) -> None:
    passes = even_passes(rows, budget, Ranks(torch.device("cpu")))
    found = [
        torch.cat([torch.full((len(rows[index].sampled),), float(index)) for index in indices]) for indices in passes
    ]
    for index, column in enumerate(by_row(found, passes, rows)):
        assert column.tolist() == [float(index)] * len(rows[index].sampled)


def test_what_an_idle_pass_finds_is_nobodys() -> None:
    assert by_row([torch.ones(1)], [[]], []) == []
