"""Draws the rooms of the package and their imports: `python tests/rooms_picture.py` writes docs/images/rooms.svg.

An arrow points from a room to one that it imports. Imports that follow from other arrows are left out, so the picture
shows the order of the rooms and stays readable. `tests/test_map.py` checks that the file is up to date.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Mapping, Set
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rewardflow"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

FOUNDATION = "types errors clock"
CAPTIONS: Mapping[str, str] = {
    FOUNDATION: "what everybody imports",
    "observe": "events, run directory",
    "reward": "the agent",
    "flow": "the loop",
    "settings": "YAML to records",
    "services": "judges, rules",
    "shared_agent": "one agent, many runs",
    "serve": "the agent over HTTP",
    "answers": "files to score",
    "judging": "evidence on judges",
    "plan": "the simulator",
    "data": "prompts",
    "algo": "advantages, losses",
    "policy": "models",
    "generate": "engines",
    "train": "trainers",
    "checkpoint": "saved runs",
    "runtime": "opens a run",
    "adapters": "verl",
    "mock_judge": "a judge to try",
    "drawing": "HTML, SVG",
    "report": "a run as a page",
    "watch": "pages of live runs",
    "bench": "benchmarks",
    "cli": "commands",
}

Graph = Mapping[str, Set[str]]

_BOX = (136, 44)
_GAP = (22, 52)
_MARGIN = 20


def room_of(module: str) -> str | None:
    """`reward` for `rewardflow.reward.agent`; None for the package's public face, which only users import."""
    parts = module.split(".")
    if len(parts) < 2 or parts[1].startswith("__"):
        return None
    return parts[1] if (PACKAGE / parts[1]).is_dir() else FOUNDATION


def imports() -> Graph:
    """Which rooms each room imports anywhere, also late and for type checkers."""
    found: dict[str, set[str]] = {room: set() for room in CAPTIONS}
    for path in PACKAGE.rglob("*.py"):
        own = room_of(".".join(("rewardflow", *path.relative_to(PACKAGE).with_suffix("").parts)))
        if own is None:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            rooms = {room_of(name) for name in names if name.startswith("rewardflow.")}
            found[own] |= {room for room in rooms if room is not None and room != own}
    return found


def reduced(graph: Graph) -> Graph:
    """Without the arrows that follow from others."""

    @functools.cache
    def reach(room: str) -> frozenset[str]:
        return frozenset(graph[room]).union(*(reach(other) for other in graph[room]))

    return {
        room: {one for one in below if not any(one in reach(other) for other in below if other != one)}
        for room, below in graph.items()
    }


def levels(graph: Graph) -> list[list[str]]:
    """The lowest rooms first; a room is one level above the highest that it imports."""

    @functools.cache
    def level(room: str) -> int:
        return 1 + max((level(other) for other in graph[room]), default=-1)

    rows: list[list[str]] = [[] for _ in range(1 + max(map(level, graph)))]
    for room in graph:
        rows[level(room)].append(room)
    return rows


def routes(graph: Graph) -> dict[tuple[str, str], list[str]]:
    """Each arrow as the rooms and bends that it goes through; an arrow over several levels has a bend in each."""
    level = {room: number for number, row in enumerate(levels(graph)) for room in row}
    found = {}
    for room, below in graph.items():
        for other in sorted(below):
            bends = [f"{room}>{other}@{number}" for number in range(level[room] - 1, level[other], -1)]
            found[room, other] = [room, *bends, other]
    return found


def placed(graph: Graph) -> dict[str, tuple[float, float]]:
    """The middle of the upper edge of each room's box, and the place of each bend."""
    rows: list[list[str]] = levels(graph)
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for route in routes(graph).values():
        for bend in route[1:-1]:
            rows[int(bend.rpartition("@")[2])].append(bend)
        for upper, lower in itertools.pairwise(route):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    order = {name: float(place) for row in rows for place, name in enumerate(row)}
    for _ in range(12):  # up and down: each name goes to the middle of its neighbours, which uncrosses arrows
        for neighbours, some_rows in ((below, rows), (above, rows[::-1])):
            for row in some_rows:
                wanted = {name: _middle([order[one] for one in neighbours.get(name, ())], order[name]) for name in row}
                row.sort(key=lambda name, wanted=wanted: (wanted[name], name))  # type: ignore[misc]
                order |= {name: (place + 0.5) / len(row) for place, name in enumerate(row)}
    widest = max(sum(map(_width, row)) for row in rows)
    corners: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        spare = (widest - sum(map(_width, row))) / len(row)
        x = float(_MARGIN)
        for name in row:
            x += (_width(name) + spare) / 2
            corners[name] = (x, _MARGIN + (len(rows) - 1 - number) * (_BOX[1] + _GAP[1]))
            x += (_width(name) + spare) / 2
    return corners


def _width(name: str) -> int:
    return _BOX[0] + _GAP[0] if name in CAPTIONS else _GAP[0]


def _middle(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def draw() -> str:
    graph = reduced(imports())
    tops = placed(graph)
    width = max(x for x, _ in tops.values()) + _BOX[0] / 2 + _MARGIN
    height = max(y for _, y in tops.values()) + _BOX[1] + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="system-ui, sans-serif" role="img">',
        "<title>The rooms of the package; an arrow points to what a room imports</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#64748b"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        *(_arrow([tops[name] for name in route]) for route in routes(graph).values()),
        *(_box(room, *tops[room]) for room in graph),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arrow(points: list[tuple[float, float]]) -> str:
    """Leaves the first box below, passes between boxes at each bend, and enters the last box from above."""
    x, y = points[0][0], points[0][1] + _BOX[1]
    path = f"M{x:.0f} {y:.0f}"
    for number, (next_x, next_y) in enumerate(points[1:], start=1):
        is_last = number == len(points) - 1
        target_y = next_y - 2 if is_last else next_y
        bend = (target_y - y) / 2
        path += f" C{x:.0f} {y + bend:.0f} {next_x:.0f} {target_y - bend:.0f} {next_x:.0f} {target_y:.0f}"
        x, y = next_x, target_y
        if not is_last:
            y += _BOX[1]
            path += f" L{x:.0f} {y:.0f}"
    return f'<path d="{path}" fill="none" stroke="#94a3b8" stroke-width="1.2" marker-end="url(#tip)"/>'


def _box(room: str, x: float, y: float) -> str:
    left = x - _BOX[0] / 2
    name = room if room == FOUNDATION else f"{room}/"
    return (
        f'<rect x="{left:.0f}" y="{y:.0f}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6" '
        'fill="#f1f5f9" stroke="#475569"/>'
        f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle" font-size="13" font-weight="600">'
        f"{escape(name)}</text>"
        f'<text x="{x:.0f}" y="{y + 34:.0f}" text-anchor="middle" font-size="11" fill="#475569">'
        f"{escape(CAPTIONS[room])}</text>"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
