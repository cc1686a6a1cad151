"""Makes the pictures of a run for the documents: the terminal while it trains, and the top of its report.

    python tests/pictures.py            # with playwright, chromium and tmux: .venv-browser/bin/python

The run is real: `examples/rule_and_judge` with the mock judge, in a terminal of tmux. Nothing is drawn by hand; only the
link to a font on the network is taken out of the terminal's picture.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COMMAND = ROOT / ".venv" / "bin" / "rewardflow"
COLUMNS, LINES = 100, 30
STEPS, SHOWN_STEP = 60, 45
DEADLINE_S = 600.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "runs" / "rule_and_judge"
        with mock_judge():
            screen = trained(run_dir)
        (IMAGES / "terminal.svg").write_text(as_svg(screen), "utf-8")
        page = Path(folder) / "report.html"
        subprocess.run([COMMAND, "report", str(run_dir), "--out", str(page)], check=True, stdout=subprocess.DEVNULL)
        photograph(page, IMAGES / "report.jpg")
    for name in ("terminal.svg", "report.jpg"):
        sys.stdout.write(f"{name}: {(IMAGES / name).stat().st_size:,} bytes\n")


@contextmanager
def mock_judge() -> Iterator[None]:
    arguments = ["--port", "8077", "--scores", "graded", "--latency", "lognormal:0.6,0.5"]
    process = subprocess.Popen([COMMAND, "mock-judge", *arguments], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def trained(run_dir: Path) -> str:
    """Trains in a terminal, and returns what that showed after some steps, with its colours."""
    server = f"pictures-{os.getpid()}"
    run = f"{COMMAND} train examples/rule_and_judge/run.yaml steps={STEPS} run_dir={run_dir}; sleep 600"

    def tmux(*arguments: str) -> str:
        return subprocess.run(["tmux", "-L", server, *arguments], check=True, capture_output=True, text=True).stdout

    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    new = ["tmux", "-L", server, "new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "-c", str(ROOT), run]
    subprocess.run(new, check=True, env=environment)
    try:
        wait_for(run_dir / "metrics.jsonl", SHOWN_STEP)
        screen = tmux("capture-pane", "-e", "-p")
        wait_for(run_dir / "metrics.jsonl", STEPS)
        while '"AgentClosed"' not in (run_dir / "events.jsonl").read_text("utf-8"):
            time.sleep(0.2)
    finally:
        tmux("kill-server")
    return screen


def wait_for(file: Path, num_lines: int) -> None:
    began_s = time.monotonic()
    while not file.exists() or file.read_bytes().count(b"\n") < num_lines:
        if time.monotonic() - began_s > DEADLINE_S:
            raise SystemExit(f"{file} did not get {num_lines} lines")
        time.sleep(0.2)


def as_svg(screen: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(screen.rstrip()))
    drawn = console.export_svg(title="rewardflow train examples/rule_and_judge/run.yaml", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def photograph(page: Path, picture: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1240, "height": 900})
        view.goto(page.as_uri())
        view.screenshot(path=str(picture), type="jpeg", quality=80)
        browser.close()


if __name__ == "__main__":
    main()
