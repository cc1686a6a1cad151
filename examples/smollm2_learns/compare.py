"""Draws the curves of several runs into one SVG, and prints their figures and answers before and after as Markdown.

python compare.py overlapped=runs/learns synchronous=runs/learns_sync --svg curves.svg
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN = 360, 200, 40
COLOURS = ("#2563eb", "#d97706", "#059669")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The records of one run directory."""

    name: str
    steps: Sequence[dict[str, Any]]
    validations: Sequence[dict[str, Any]]
    answers: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, name: str, folder: Path) -> Run:
        rows = list(_rows(folder / "metrics.jsonl"))
        return cls(
            name=name,
            steps=[row for row in rows if row["source"] == "train"],
            validations=[row for row in rows if row["source"] == "validation"],
            answers=list(_rows(folder / "validation_rollouts.jsonl")),
        )

    @property
    def component_names(self) -> list[str]:
        """The parts of the reward, without the criteria of a judge."""
        return [name for name in self.steps[0]["component_means"] if "/" not in name]

    def component(self, name: str) -> list[float]:
        return [step["component_means"][name] for step in self.steps]

    def answers_of(self, version: int) -> dict[str, dict[str, Any]]:
        return {row["prompt"]: row for row in self.answers if row["version"] == version}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


# ---- the curves ---------------------------------------------------------------------------------------------------


def svg(runs: Sequence[Run]) -> str:
    """Returns one panel for each component of the reward, with a line for each run."""
    names = runs[0].component_names
    panels = [_panel(runs, name, number * (WIDTH + MARGIN)) for number, name in enumerate(names)]
    size = f'width="{len(names) * (WIDTH + MARGIN) + MARGIN}" height="{HEIGHT + 2 * MARGIN}"'
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{"".join(panels)}</svg>\n'


def _panel(runs: Sequence[Run], name: str, left: float) -> str:
    drawn = [f'<text x="{WIDTH / 2}" y="-12" text-anchor="middle">{name}, mean of a step</text>']
    for value in (0.0, 0.5, 1.0):
        y = HEIGHT * (1 - value)
        drawn.append(f'<path d="M0 {y}H{WIDTH}" stroke="#d4d4d8"/>')
        drawn.append(f'<text x="-8" y="{y + 4}" text-anchor="end">{value}</text>')
    last = max(len(run.steps) for run in runs) - 1
    pitch = WIDTH / max(1, last)
    for number, run in enumerate(runs):
        values = run.component(name)
        points = " ".join(f"{i * pitch:.1f},{HEIGHT * (1 - value):.1f}" for i, value in enumerate(values))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>')
        drawn.append(f'<text x="{8 + 110 * number}" y="{HEIGHT + 28}" fill="{COLOURS[number]}">{run.name}</text>')
    drawn.append(f'<text x="{WIDTH}" y="{HEIGHT + 16}" text-anchor="end">step {last}</text>')
    return f'<g transform="translate({left + MARGIN} {MARGIN})">{"".join(drawn)}</g>\n'


# ---- the tables ---------------------------------------------------------------------------------------------------


def tables(runs: Sequence[Run]) -> Iterator[str]:
    """Yields the lines of a table of figures, and of a table of the first run's answers."""
    names = runs[0].component_names
    yield f"| run | version | {' | '.join(names)} | tokens | cut off |"
    yield f"|---|---|{'---|' * (len(names) + 2)}"
    for run in runs:
        for row in run.validations:
            means = " | ".join(f"{row[f'validation/component_means/{name}']:.2f}" for name in names)
            length, cut = row["validation/response_tokens_mean"], row["validation/truncated_share"]
            yield f"| {run.name} | {row['version']} | {means} | {length:.1f} | {cut:.0%} |"
    before, after = (runs[0].answers_of(version) for version in (0, len(runs[0].steps)))
    yield "\n| question | before | after |\n|---|---|---|"
    for prompt, row in before.items():
        yield f"| {prompt} | {_cell(row)} | {_cell(after[prompt])} |"


def _cell(row: dict[str, Any]) -> str:
    text = " ".join(row["response"].split()).replace("|", "\\|")
    return text + (" [cut off]" if row["truncated"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare runs: curves as SVG, figures and answers as Markdown.")
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN_DIR")
    parser.add_argument("--svg", type=Path, help="where the curves go")
    args = parser.parse_args()
    named = (argument.partition("=") for argument in args.runs)
    runs = [Run.read(name, Path(folder)) for name, _, folder in named]
    if args.svg is not None:
        args.svg.write_text(svg(runs), "utf-8")
    sys.stdout.writelines(f"{line}\n" for line in tables(runs))


if __name__ == "__main__":
    main()
