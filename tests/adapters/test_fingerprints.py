"""Whether the pieces of another package that an adapter uses have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.adapters.fingerprints import changed_pieces, fingerprint

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


def test_what_changed_is_named(package: Path) -> None:
    same = fingerprint(package, "trainer.py:Trainer.step")
    assert same is not None
    pieces = {"trainer.py:Trainer.step": same, "trainer.py:Trainer": "other", "trainer.py:Trainer.gone": "x"}
    assert changed_pieces(package, pieces) == ["trainer.py:Trainer changed", "trainer.py:Trainer.gone is gone"]
