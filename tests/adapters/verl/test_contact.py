"""The pieces of verl that the adapter uses, and whether they changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rewardflow.adapters.verl.contact import FINGERPRINTS, drift, num_ranks, trainer_of
from rewardflow.errors import FlowError


def test_in_a_package_without_any_of_it_every_piece_is_gone(tmp_path: Path) -> None:
    assert len(drift(tmp_path)) == len(FINGERPRINTS)


def test_a_sampler_finds_its_trainer_by_the_method_it_is_given() -> None:
    class Trainer:
        def refill(self, count: int) -> None: ...

    trainer = Trainer()
    assert trainer_of(trainer.refill) is trainer
    with pytest.raises(FlowError, match="must pass one of its methods"):
        trainer_of(lambda count: None)


def test_ranks_are_counted_from_verls_own_table() -> None:
    assert num_ranks(SimpleNamespace(_dispatch_info={"actor": [0, 0, 1, 1]}), "actor") == 2
