"""`rewardflow serve` as a process that can be killed, with a judge that writes down each call it gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rewardflow.types import EMPTY

JUDGE = """
import asyncio, os

async def judge(solution_str):
    line = f"{solution_str}\\n".encode()
    await asyncio.sleep(0.02)
    with open(os.environ["CALLS_FILE"], "ab", buffering=0) as calls:
        calls.write(line)
    return float(len(solution_str))
"""


class ServingProcess:
    """One server on a fixed folder: its journal, its judge and its list of calls stay when it is killed."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        options: tuple[str, ...] = (),
        judge: str = JUDGE,
        serve: str = "",
        env: Mapping[str, str] = EMPTY,
    ) -> None:
        """`serve` is the section of that name in the reward's file, as one line of YAML."""
        self.folder = folder
        self._port = port
        self._options = options
        self._env = env
        (folder / "judge.py").write_text(judge)
        (folder / "judge.yaml").write_text(f"reward: {folder}/judge.py:judge\nserve: {serve or '{}'}\n")
        self.calls_file = folder / "calls"
        self.url = ""

    def __enter__(self) -> ServingProcess:
        command = ["serve", f"{self.folder}/judge.yaml", "--port", str(self._port), "--json"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rewardflow", *command, "--journal", str(self.folder / "v.db"), *self._options],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": "", "CALLS_FILE": str(self.calls_file), **self._env},
        )
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"]
        self._port = int(self.url.rpartition(":")[2])
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.communicate(timeout=60)

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
