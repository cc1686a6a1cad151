"""The wheel installs and runs outside a clone."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = """
import pathlib, sys
import rewardflow as rf

assert pathlib.Path(rf.__file__).is_relative_to(sys.argv[1]), rf.__file__
rewards = rf.score(rf.Rollout(group_id="q", response="#### 42", ground_truth="42"), "rule.yaml")
assert [reward.value for reward in rewards] == [1.0]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("rewardflow-*.whl")
    target = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run_outside(site: Path, *arguments: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_runs_outside_a_clone(site: Path, tmp_path: Path) -> None:
    (tmp_path / "rule.yaml").write_text("reward: gsm8k\n", "utf-8")
    run_outside(site, "-c", CODE, str(site), folder=tmp_path)
    assert "train a policy with a reward" in run_outside(site, "-m", "rewardflow", folder=tmp_path)
    run_outside(site, "-m", "rewardflow", "init", "new", "--case", "judge", folder=tmp_path)
    assert (tmp_path / "new" / "judge.yaml").is_file()


def test_the_wheel_has_the_typing_marker_the_commands_and_the_licence(site: Path) -> None:
    assert (site / "rewardflow" / "py.typed").is_file()
    (information,) = site.glob("rewardflow-*.dist-info")
    assert "rewardflow = rewardflow.cli.entry:main" in (information / "entry_points.txt").read_text("utf-8")
    assert (information / "licenses" / "LICENSE").is_file()


def test_an_extra_leaves_people_their_own_torch() -> None:
    """An exact version would replace the CUDA build of an environment that already has one."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    torch = [one for names in extras.values() for one in names if one.startswith("torch")]
    assert torch == ["torch>=2.13"]
