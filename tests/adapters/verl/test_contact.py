"""The pieces of verl that the adapter uses, and whether they changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rewardflow.adapters.verl import contact
from rewardflow.adapters.verl.contact import FINGERPRINTS, drift, fingerprint, num_ranks, trainer_of
from rewardflow.errors import FlowError

CODE = """
class Trainer:
    def step(self, batch):
        '''Makes a step.'''
        return self.train(batch)  # with all of it
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "trainer.py").write_text(CODE)
    return tmp_path


def test_comments_docstrings_and_other_code_do_not_matter(package: Path) -> None:
    before = fingerprint(package, "trainer.py:Trainer.step")
    assert before is not None
    text = CODE.replace("Makes", "Does").replace("# with all of it", "") + "\nOTHER = 1\n"
    (package / "trainer.py").write_text(text)
    assert fingerprint(package, "trainer.py:Trainer.step") == before
    (package / "trainer.py").write_text(CODE.replace("self.train(batch)", "self.train(batch, 2)"))
    assert fingerprint(package, "trainer.py:Trainer.step") != before


@pytest.mark.parametrize("piece", ["trainer.py:Trainer.gone", "trainer.py:Gone.step", "gone.py:Trainer.step"])
def test_what_is_not_there_has_none(package: Path, piece: str) -> None:
    assert fingerprint(package, piece) is None


def test_what_changed_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = fingerprint(package, "trainer.py:Trainer.step")
    pieces = {"trainer.py:Trainer.step": same, "trainer.py:Trainer": "other", "trainer.py:Trainer.gone": "x"}
    monkeypatch.setattr(contact, "FINGERPRINTS", pieces)
    assert drift(package) == ["trainer.py:Trainer changed", "trainer.py:Trainer.gone is gone"]


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
