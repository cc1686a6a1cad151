"""docs/algorithms.md has the tables that the code gives, and the settings that they call refused are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from rewardflow.algo.docs_tables import END, START, main, tables, with_tables
from rewardflow.algo.losses import LOSSES
from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule, Stream
from rewardflow.settings.algorithm_needs import ADVANTAGES
from rewardflow.settings.run_settings import AlgorithmSettings, DataSettings, GenerationSettings, RunSettings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
ROWS = {
    cells[0].strip("`"): cells
    for line in tables().splitlines()
    if line.startswith("| `") and (cells := [cell.strip() for cell in line.strip("|").split(" | ")])
}


def is_taken(name: str, stream: Stream = "batch", group_size: int = 4, **algorithm: object) -> bool:
    try:
        RunSettings(
            reward="judge.py:f",
            data=DataSettings(task="arithmetic"),
            schedule=Schedule(groups_per_step=8, stream=stream, min_group=1),
            steps=1,
            generation=GenerationSettings(group_size=group_size),
            algorithm=AlgorithmSettings(advantage=name, **algorithm),  # type: ignore[arg-type]
        )
    except InvalidInput:
        return False
    return True


def test_the_page_has_the_tables_as_they_are_now() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_tables(page), "run: python -m rewardflow.algo.docs_tables docs/algorithms.md"


def test_there_is_a_row_for_every_advantage_and_every_loss() -> None:
    assert list(ROWS) == [*ADVANTAGES, *LOSSES]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_what_a_row_says_of_an_advantage_is_so(name: str) -> None:
    _, _, _, streams, _, refused = ROWS[name]
    told = get_args(Stream) if streams == "every" else tuple(re.findall(r"`(\w+)`", streams))
    assert told == tuple(stream for stream in get_args(Stream) if is_taken(name, stream))
    assert ("`group_size: 1`" in refused) is not is_taken(name, group_size=1)
    assert ("`scale`:" in refused) is not is_taken(name, scale="none")
    assert ("`discount` below 1" in refused) is not is_taken(name, discount=0.9)
    assert ("without `whiten: false`" in refused) is is_taken(name, "micro_batch", whiten=False)


def test_only_what_is_between_the_marks_is_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}what stood there\n{END}after\n")
    main([str(page)])
    written = page.read_text()
    assert written.startswith(f"before\n{START}")
    assert written.endswith(f"{END}after\n")
    assert "what stood there" not in written


@pytest.mark.parametrize("page", ["", START, f"{START}{START}{END}"])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(InvalidInput, match="a page must have the line"):
        with_tables(page)
