"""Says how this program is called from the shell that called it.

Always true: the words run this installation, also if its folder of programs is not on the shell's path.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "rewardflow"


def own_command() -> str:
    program = Path(sys.argv[0])
    if program.name != _NAME or not program.is_file():
        return shlex.join([sys.executable or "python", "-m", _NAME])
    on_path = shutil.which(_NAME)
    if on_path is not None and Path(on_path).samefile(program):
        return _NAME
    shorter = os.path.relpath(program)
    return shlex.quote(str(program) if shorter.startswith(os.pardir) else shorter)
