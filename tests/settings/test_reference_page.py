"""docs/configuration.md has the reference as the records give it, and an example that can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.settings.reference_page import END, START, main, reference, type_in_words, with_reference
from rewardflow.settings.run_file import load_run
from rewardflow.settings.run_keys import LIMITS, keys

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_page_has_the_reference_as_it_is_now() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_reference(page), "run: python -m rewardflow.settings.reference_page docs/configuration.md"


def test_the_example_of_the_page_can_be_loaded(tmp_path: Path) -> None:
    example, in_place = BLOCK.findall(PAGE.read_text("utf-8"))
    assert example.startswith("# run.yaml\n")
    (tmp_path / "run.yaml").write_text(example)
    run = load_run(tmp_path / "run.yaml")
    assert (run.schedule.stream, run.limits["max_concurrency"]) == ("mini_batch", 256)
    other = example.replace("reward: judge.py:compute_score\nreward_kwargs: {model: gpt-5-mini}\n", in_place)
    (tmp_path / "run.yaml").write_text(other)
    assert isinstance(load_run(tmp_path / "run.yaml").reward, dict)


def test_every_key_has_a_row_with_its_type_default_and_meaning() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", reference(), re.MULTILINE))
    assert list(rows) == [name for name, key in keys().items() if key.section != LIMITS]
    assert (
        rows["trainer.max_grad_norm"] == "number or null | `1.0` | clip the gradient's norm to this; null: do not clip"
    )
    assert rows["schedule.groups_per_step"].startswith("whole number | required | ")
    assert rows["generation.stop"].startswith("list of text | `[]` | ")
    assert rows["data.path"].startswith("path or null | `null` | ")


def test_only_what_is_between_the_marks_is_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}what stood there\n{END}after\n")
    main([str(page)])
    written = page.read_text()
    assert written.startswith(f"before\n{START}")
    assert written.endswith(f"{END}after\n")
    assert "what stood there" not in written
    assert with_reference(written) == written


@pytest.mark.parametrize("page", ["", START, f"{START}{START}{END}"])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(InvalidInput, match="a page must have the line"):
        with_reference(page)


def test_types_are_told_in_words() -> None:
    assert type_in_words(tuple[float, float]) == "list of 2: number, number"
