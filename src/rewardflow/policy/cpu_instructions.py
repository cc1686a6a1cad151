"""Keeps torch off matrix instructions (AMX) that a virtual machine announces, but does not describe.

Always true: a limit that the user set stays, and a machine that describes its instructions keeps them all.

On CPUs torch multiplies bfloat16 matrices by oneDNN, which reads the size of AMX's tiles from leaf 0x1D of `cpuid`.
Some hypervisors pass on the flag of AMX and hide that leaf. oneDNN then configures tiles of no size, and the first
product ends the process with an illegal instruction.
"""

from __future__ import annotations

import os
from pathlib import Path

_LIMIT = "ONEDNN_MAX_CPU_ISA"
_ALL_BUT_AMX = "AVX512_CORE_FP16"
_TILE_LEAF = 0x1D


def avoid_undescribed_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Limits oneDNN in this process and its children. Has an effect only before torch's first product."""
    if _LIMIT not in os.environ and _hides_its_tiles(cpuinfo):
        os.environ[_LIMIT] = _ALL_BUT_AMX


def _hides_its_tiles(cpuinfo: Path) -> bool:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:  # another operating system
        return False
    lines = [line.partition(":") for line in text.split("\n\n")[0].splitlines()]
    first_cpu = {name.strip(): value.strip() for name, _, value in lines}
    level = first_cpu.get("cpuid level", "")
    return "amx_tile" in first_cpu.get("flags", "").split() and level.isdigit() and int(level) < _TILE_LEAF
