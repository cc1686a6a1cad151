"""Rows of a data set that the `datasets` package can load, which is an extra.

Always true: nothing is imported or downloaded before a data set is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from rewardflow.data.table import Table, table_of
from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra


def read_dataset(name: str, split: str, *, limit: int | None = None, load: Callable[..., Any] | None = None) -> Table:
    """`name` is a data set of the hub or a folder, with `:configuration` behind it where it has several.

    `load` stands in for `datasets.load_dataset`.
    """
    load = load or import_extra("datasets", "datasets", f"data.dataset={name}").load_dataset
    place, _, configuration = name.partition(":")
    try:
        rows = load(place, configuration or None, split=split)
    except (OSError, ValueError) as error:  # as datasets tells a wrong name, configuration or split
        raise InvalidInput(f"data.dataset must be one that datasets can load, got {name}: {error}") from error
    return table_of(f"{name} ({split})", enumerate(itertools.islice(rows, limit), start=1))
