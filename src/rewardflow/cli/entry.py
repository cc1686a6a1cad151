"""The program `rewardflow`, as the console script starts it.

Always true: Ctrl-C is one line and exit code 130 at every moment: while modules load, while a command runs, and while
the interpreter ends, when it says nothing at all. Nothing but the standard library is imported before the handler is
set.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 128 + signal.SIGINT


def main() -> NoReturn:
    has_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not if a shell made it ignored
    if has_ctrl_c:
        signal.signal(signal.SIGINT, _leave)
    from rewardflow.cli.main import main as run

    try:
        if has_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:
        _leave()
    finally:
        if has_ctrl_c:  # threads and libraries that take their time to end must not print tracebacks
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _leave(_: int = 0, __: FrameType | None = None) -> NoReturn:
    """Exits without the interpreter's own ending: imports that are half done must not be unwound."""
    os.write(2, b"rewardflow: interrupted\n")
    os._exit(_INTERRUPTED)
