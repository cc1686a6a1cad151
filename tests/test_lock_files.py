"""The lock files, constraints.txt and pyproject.toml name the same versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from lock_files import CONSTRAINTS, CORE_LOCK, DEV_LOCK, ROOT, WITHOUT_HASH, build_requirements, normal, pins_in

LOCKS = pytest.mark.parametrize("lock", [CORE_LOCK, DEV_LOCK], ids=lambda path: path.name)


def test_the_lock_of_contributors_has_all_versions_of_the_constraints_but_torch() -> None:
    constraints = pins_in(CONSTRAINTS)
    assert pins_in(DEV_LOCK) == {name: pin for name, pin in constraints.items() if name not in WITHOUT_HASH}
    assert constraints.keys() >= WITHOUT_HASH


def test_the_lock_of_the_agent_has_versions_of_the_constraints_and_all_that_the_package_names() -> None:
    core, constraints = pins_in(CORE_LOCK), pins_in(CONSTRAINTS)
    assert core.items() <= constraints.items()
    with (ROOT / "pyproject.toml").open("rb") as file:
        named = tomllib.load(file)["project"]["dependencies"]
    wanted = {normal(re.split(r"[<>=!~;\[ ]", one)[0]) for one in (*named, *build_requirements(), "editables")}
    assert wanted <= core.keys()


@LOCKS
def test_every_version_in_a_lock_has_hashes(lock: Path) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", lock.read_text("utf-8"), flags=re.MULTILINE).strip())
    assert len(entries) == len(pins_in(lock))
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry[:80]


@LOCKS
def test_a_lock_names_no_index_and_no_address(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert "://" not in text
    assert re.findall(r"--(?!hash=|require-hashes|no-deps|no-build-isolation)[a-z-]+", text) == []


def test_constraints_have_no_hashes_because_pip_would_then_refuse_an_editable_install() -> None:
    assert "--hash" not in CONSTRAINTS.read_text("utf-8")


def test_the_build_back_end_is_pinned_to_the_version_of_the_constraints() -> None:
    constraints = pins_in(CONSTRAINTS)
    for requirement in build_requirements():
        name, _, version = requirement.partition("==")
        assert version == constraints[normal(name)], requirement
