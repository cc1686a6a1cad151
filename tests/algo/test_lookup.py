"""Names are found in a table or refused with the names that it has."""

from __future__ import annotations

import pytest

from rewardflow.algo.lookup import look_up
from rewardflow.errors import InvalidInput


def test_a_name_finds_its_entry_and_an_unknown_one_is_refused_with_the_known_ones() -> None:
    table = {"ppo": 1, "gspo": 2}
    assert look_up("loss", "gspo", table) == 2
    with pytest.raises(InvalidInput, match="loss must be one of ppo, gspo, got 'sft'"):
        look_up("loss", "sft", table)
