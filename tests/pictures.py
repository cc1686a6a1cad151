"""Makes the pictures of the documents from real output: the top of a run's report, and a plan in a terminal.

    rewardflow demo --run-dir /tmp/demo
    .venv-browser/bin/python tests/pictures.py /tmp/demo/pipeline_one_step

It needs playwright and chromium. Nothing is drawn by hand; only the link to a font on the network is taken out of the
terminal's picture.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COMMAND = ROOT / ".venv" / "bin" / "rewardflow"
COLUMNS = 100
SHOWN = ["plan", "examples/planning/plan.yaml"]


def main(run_dir: str) -> None:
    (IMAGES / "terminal.svg").write_text(as_svg(terminal_output()), "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run([COMMAND, "report", run_dir, "--out", page], check=True, stdout=subprocess.DEVNULL)
        photograph(page, IMAGES / "report.jpg")
    for name in ("terminal.svg", "report.jpg"):
        sys.stdout.write(f"{name}: {(IMAGES / name).stat().st_size:,} bytes\n")


def terminal_output() -> str:
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    done = subprocess.run([COMMAND, *SHOWN], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return f"$ rewardflow {' '.join(SHOWN)}\n{done.stdout}"


def as_svg(output: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(output.rstrip()))
    drawn = console.export_svg(title="rewardflow", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def photograph(page: Path, picture: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1240, "height": 900})
        view.set_default_timeout(120_000)
        view.goto(page.as_uri())
        view.screenshot(path=str(picture), type="jpeg", quality=80)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
