"""Writes a plan as one HTML page: its tables, and a timeline of two steps for each schedule.

Always true: the page loads nothing from elsewhere and runs no script; every text on it is escaped; all timelines have
the same scale, so that a shorter timeline means a faster schedule; work has the colours that a report gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from rewardflow.plan.formatting import (
    COMPARED_HEADINGS,
    HEADINGS,
    TableLine,
    comparison_line,
    floors_text,
    gain_text,
    long_time,
    schedule_lines,
    seconds,
)
from rewardflow.plan.planner import Plan
from rewardflow.plan.simulated_figures import PlannedSpan, PlannedTimeline, ScheduleRow

_WIDTH: Final = 960
_LANE: Final = 26
_CALLS: Final = 54
_AXIS: Final = 18
_WORKS: Final = {"generate": "generate", "log_probs": "log-probs", "update": "update", "publish": "publish"}
_STYLE: Final = """
:root{color-scheme:light dark;--back:#fbfbfa;--text:#22252a;--soft:#6b7078;--line:#dcdedf;--card:#fff;--mark:#fff6d6;
--generate:#4a7fd4;--log_probs:#39a6a3;--update:#4f9d57;--publish:#8c6cc4;--idle:#eceeef;--calls:#b9c6d6}
@media(prefers-color-scheme:dark){:root{--back:#16181b;--text:#e4e6e8;--soft:#9aa1a9;--line:#33373c;--card:#1d2024;
--mark:#3a3420;--generate:#6c9ceb;--log_probs:#4fc0bc;--update:#68bd71;--publish:#a78be0;--idle:#2a2e33;--calls:#4a5a6e}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:28px 24px 60px;background:var(--back);
color:var(--text);font:15px/1.5 system-ui,sans-serif}h1{font-size:24px;margin:0 0 4px}
h2{font-size:17px;margin:34px 0 10px}
p{margin:6px 0;max-width:78ch}.soft{color:var(--soft)}.card{background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:14px 18px;margin:16px 0;overflow-x:auto}table{border-collapse:collapse;width:100%;
font-variant-numeric:tabular-nums}th,td{padding:5px 9px;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--line)}th{font-weight:600;color:var(--soft)}th:first-child,td:first-child{text-align:left}
tr.best td{background:var(--mark)}tr:last-child td{border-bottom:0}svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}.legend span{margin-right:16px}.legend i{display:inline-block;
width:11px;height:11px;border-radius:2px;margin-right:5px}h3{font-size:14px;margin:0 0 6px;font-weight:600}
ul{margin:6px 0;padding-left:20px}
"""


def plan_page(plan: Plan, *, title: str) -> str:
    """Returns the whole HTML document."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_shape(plan))}</p>',
        f'<div class="card"><p><b>{escape(plan.recommendation)}</b></p></div>',
        "<h2>Schedules</h2>",
        _table(HEADINGS, schedule_lines(plan.rows, plan.recommended.schedule)),
        "<h2>Two steps of each</h2>",
        _legend(),
        *_timelines(plan.rows, plan.timelines),
        f"<h2>What one more unit would buy {escape(plan.recommended.schedule)}</h2>",
        _list([gain_text(gain, plan.recommended.step_s) for gain in plan.gains]),
        *_original(plan),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _shape(plan: Plan) -> str:
    settings = plan.settings
    return (
        f"{settings.prompts:,} prompts x {settings.responses} responses a step, {settings.mini_batches} mini-batches, "
        f"{settings.service.slots:,} slots. {floors_text(plan.floors)}. "
        f"Times and costs of a run are for {settings.steps:,} steps; at most {settings.simulated_steps} were simulated."
    )


def _original(plan: Plan) -> list[str]:
    if not plan.as_original:
        return []
    parts = ["<h2>As the original did it</h2>", _table(HEADINGS, schedule_lines(plan.as_original))]
    if plan.published:
        parts += [
            "<h2>Beside published runs</h2>",
            _table(COMPARED_HEADINGS, [comparison_line(one) for one in plan.published]),
        ]
    return parts


def _table(headings: Sequence[str], lines: Sequence[TableLine]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(_line(line) for line in lines)
    return f'<div class="card"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _line(line: TableLine) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in line.texts)
    return f"<tr{' class=best' if line.is_emphasised else ''}>{cells}</tr>"


def _list(lines: Sequence[str]) -> str:
    return f'<div class="card"><ul>{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul></div>'


def _legend() -> str:
    entries = [*_WORKS.items(), ("idle", "idle"), ("calls", "reward calls in flight")]
    marks = "".join(f'<span><i style="background:var(--{key})"></i>{escape(text)}</span>' for key, text in entries)
    return f'<p class="legend">{marks}</p>'


def _timelines(rows: Sequence[ScheduleRow], timelines: Sequence[PlannedTimeline]) -> list[str]:
    longest_s = max(timeline.duration_s for timeline in timelines) or 1.0
    most = max(max(timeline.in_flight, default=0) for timeline in timelines) or 1
    return [
        f'<div class="card"><h3>{escape(row.schedule)} <span class="soft">{seconds(row.step_s)} a step, '
        f"{row.change:+.1%}</span></h3>{_drawing(row, timeline, _WIDTH / longest_s, most)}</div>"
        for row, timeline in zip(rows, timelines, strict=True)
    ]


def _drawing(row: ScheduleRow, timeline: PlannedTimeline, scale: float, most: int) -> str:
    devices = list(dict.fromkeys(span.device for span in timeline.spans)) or ["trainer"]
    width = timeline.duration_s * scale
    top_of_calls = len(devices) * (_LANE + 4)
    height = top_of_calls + _CALLS + _AXIS
    shapes = []
    for lane, device in enumerate(devices):
        top = lane * (_LANE + 4)
        shapes.append(f'<rect x="0" y="{top}" width="{width:.1f}" height="{_LANE}" rx="3" fill="var(--idle)"/>')
        shapes += [_piece(span, top, scale) for span in timeline.spans if span.device == device]
    shapes.append(_calls(timeline, width, top_of_calls, most))
    for at_s in timeline.published_s:
        at = at_s * scale
        shapes.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height - _AXIS}" stroke="var(--soft)"/>')
        shapes.append(f'<text x="{max(at - 4, 40):.1f}" y="{height - 4}" text-anchor="end">{long_time(at_s)}</text>')
    label = escape(f"Two steps of {row.schedule}")
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(shapes)}</svg>'


def _piece(span: PlannedSpan, top: int, scale: float) -> str:
    duration_s = span.end_s - span.start_s
    title = f"{span.device}: {_WORKS.get(span.work, span.work)}, step {span.step}, {seconds(duration_s)}"
    return (
        f'<rect x="{span.start_s * scale:.2f}" y="{top}" width="{max(0.5, duration_s * scale):.2f}" height="{_LANE}" '
        f'fill="var(--{escape(span.work)})"><title>{escape(title)}</title></rect>'
    )


def _calls(timeline: PlannedTimeline, width: float, top: int, most: int) -> str:
    bottom = top + _CALLS
    count = max(1, len(timeline.in_flight) - 1)
    points = " ".join(
        f"{width * i / count:.1f},{bottom - level / most * (_CALLS - 4):.1f}"
        for i, level in enumerate(timeline.in_flight)
    )
    peak = max(timeline.in_flight, default=0)
    return (
        f'<polygon points="0,{bottom} {points} {width:.1f},{bottom}" fill="var(--calls)">'
        f"<title>up to {peak:,} reward calls in flight</title></polygon>"
    )
