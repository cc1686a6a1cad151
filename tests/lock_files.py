"""Writes the lock files: `python tests/lock_files.py` adds hashes to the versions of constraints.txt; needs a network.

    requirements.lock        what the reward agent alone needs, and what builds the package
    requirements-dev.lock    everything in constraints.txt except torch

The hashes are those of all files that the package index has for a version, so a lock file is good for every platform.
torch is left out: it comes in builds for CPUs and for each CUDA version, from different indexes and with different
files, and no hash here could stand for the build that a machine needs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
CORE_LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
WITHOUT_HASH = frozenset({"torch"})

_LOCK_TOOL = "uv==0.13.7"  # reads the hashes of all files of a version from the index's pages
_HEADER = """\
# {what}, with the hashes of all files of each version.
# Made by `make lock`; do not edit by hand.
#   pip install --require-hashes -r {name}
#   pip install --no-deps --no-build-isolation -e .
# torch is not in it: its builds for CPUs and for CUDA are different files. Install the one that your machine needs.
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_in(path: Path) -> dict[str, str]:
    """Returns the version of each package by its normal name."""
    lines = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
    pairs = [line.removesuffix("\\").strip().split("==") for line in lines if line and not line.startswith("--hash")]
    return {normal(name): version for name, version in pairs}


def build_requirements() -> list[str]:
    """Returns what pyproject.toml names to build the package."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["build-system"]["requires"])


def write_locks() -> None:
    pins = pins_in(CONSTRAINTS)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        _run(python, "-m", "pip", "-qq", "install", _LOCK_TOOL)
        core = _names_of_core(python, Path(folder) / "report.json")
        if missing := sorted(core - pins.keys()):
            sys.exit(
                f"constraints.txt must pin all that the package needs, it lacks {', '.join(missing)}: run `make lock`"
            )
        for lock, what, names in (
            (CORE_LOCK, "The reward agent's dependencies and what builds the package", core),
            (DEV_LOCK, "Everything in constraints.txt except torch", pins.keys() - WITHOUT_HASH),
        ):
            hashed = _with_hashes(Path(folder), {name: pins[name] for name in sorted(names)})
            lock.write_text(_HEADER.format(what=what, name=lock.name) + hashed, "utf-8")


def _names_of_core(python: Path, report: Path) -> set[str]:
    """Asks pip what the package without extras and its build need."""
    wanted = (str(ROOT), *build_requirements(), "editables")  # for `pip install -e`
    dry_run = ("--dry-run", "--ignore-installed", "--report", str(report), "-c", str(CONSTRAINTS))
    _run(python, "-m", "pip", "-qq", "install", *dry_run, *wanted)
    installed = json.loads(report.read_bytes())["install"]
    return {normal(one["metadata"]["name"]) for one in installed} - {"rewardflow"}


def _with_hashes(folder: Path, pins: Mapping[str, str]) -> str:
    source, target = folder / "pins.txt", folder / "pins.lock"
    source.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), "utf-8")
    target.unlink(missing_ok=True)
    plain = ("--quiet", "--no-deps", "--no-header", "--no-annotate", "--no-config")
    options = ("--generate-hashes", "--python-version", "3.11", str(source), "-o", str(target))
    _run(folder / "bin" / "uv", "pip", "compile", *plain, *options)
    return target.read_text("utf-8")


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"lock files are made with Python 3.11, which needs the most packages, got {sys.version.split()[0]}")
    write_locks()
