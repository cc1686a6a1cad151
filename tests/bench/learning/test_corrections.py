"""The corrections that the benchmark of learning compares."""

from __future__ import annotations

import itertools
from dataclasses import replace

from rewardflow.bench.learning.corrections import CORRECTIONS, PLAIN
from rewardflow.settings.copying_run import ALGORITHM


def test_a_correction_changes_only_what_it_names() -> None:
    assert PLAIN.algorithm == ALGORITHM
    for one in CORRECTIONS:
        unchanged = {name: getattr(ALGORITHM, name) for name in one.changes}
        assert replace(one.algorithm, **unchanged) == ALGORITHM


def test_every_correction_is_another_one() -> None:
    assert len({one.name for one in CORRECTIONS}) == len(CORRECTIONS)
    algorithms = [one.algorithm for one in CORRECTIONS]
    assert all(one != other for one, other in itertools.combinations(algorithms, 2))
