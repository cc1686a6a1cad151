"""A process on a machine that announces AMX and hides its tiles multiplies bfloat16 matrices without it."""

import os
from pathlib import Path

import pytest

from rewardflow.policy.cpu_instructions import avoid_undescribed_amx

NAME = "ONEDNN_MAX_CPU_ISA"


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch):
    monkeypatch.setenv(NAME, "to be restored")
    monkeypatch.delenv(NAME)


def cpuinfo(folder: Path, *, level: str, flags: str) -> Path:
    path = folder / "cpuinfo"
    cpu = f"processor\t: 0\ncpuid level\t: {level}\nflags\t\t: fpu {flags} avx512_fp16\nbugs\t\t:\n"
    path.write_text(f"{cpu}\n{cpu}\n")
    return path


def limit_after(path: Path) -> str | None:
    avoid_undescribed_amx(path)
    return os.environ.get(NAME)


def test_amx_whose_tiles_are_hidden_is_not_used(tmp_path):
    assert limit_after(cpuinfo(tmp_path, level="28", flags="amx_bf16 amx_tile")) == "AVX512_CORE_FP16"


@pytest.mark.parametrize(("level", "flags"), [("32", "amx_bf16 amx_tile"), ("28", "avx2"), ("many", "amx_tile")])
def test_a_machine_that_describes_its_instructions_keeps_them(tmp_path, level, flags):
    assert limit_after(cpuinfo(tmp_path, level=level, flags=flags)) is None


def test_a_limit_that_the_user_set_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, "AVX2")
    assert limit_after(cpuinfo(tmp_path, level="28", flags="amx_tile")) == "AVX2"


def test_a_machine_without_cpuinfo_is_left_alone(tmp_path):
    assert limit_after(tmp_path / "missing") is None
