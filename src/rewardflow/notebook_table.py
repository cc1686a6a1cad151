"""Writes small HTML tables, for records that notebooks show.

Always true: every cell is escaped, because texts of policies and judges are untrusted; long texts and long tables are
cut, and the table says so.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

MAX_ROWS = 50
MAX_CHARS = 160


def html_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_escaped(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MAX_ROWS])
    more = f" (the first {MAX_ROWS} of {len(rows):,})" if len(rows) > MAX_ROWS else ""
    return f"<table><caption>{_escaped(caption)}{more}</caption><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    return f'<td style="text-align:left">{_escaped("" if value is None else str(value))}</td>'


def _escaped(text: str) -> str:
    return html.escape(text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…")
