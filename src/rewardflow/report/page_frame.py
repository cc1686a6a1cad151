"""The frame of every page: header, sections, footer, style and script.

Always true: a page is one file that sends no request, unless `rewardflow watch` serves it; then it asks its own server,
and nobody else, for what is new. Its script is the same on every page, and shows rollouts where there are any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rewardflow.drawing.html_page import page
from rewardflow.drawing.markup import Child, Markup, tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """How a served page stays current: paths on its own server.

    The page asks for itself every `every_s` seconds while somebody looks at it; `search` answers with the rollouts that
    contain a text, and `home` is the page of all runs.
    """

    every_s: float
    home: str | None = None
    search: str | None = None


def framed_page(
    title: str,
    subtitle: Child,
    top: Child,
    sections: Sequence[Markup | None],
    *,
    rollouts: Sequence[Mapping[str, Any]] = (),
    made_by: str = "rewardflow report",
    live: Live | None = None,
) -> str:
    """Returns the whole HTML document; a section that is None is left out."""
    footer = f"Made by {made_by}. Text of models and judges is shown as it is, and runs nowhere."
    home = tag("p", tag("a", "all runs", href=live.home), class_="home") if live and live.home else None
    status = tag("p", "", id="live", role="status") if live else None
    body = Markup(
        tag("header", home, tag("h1", title), tag("div", subtitle, id="subtitle"), status)
        + tag("main", tag("div", top, id="top"), [each for each in sections if each is not None])
        + tag("footer", tag("p", footer))
        + tag("div", id="tip", role="status", hidden=True)
    )
    data = {"rollouts": list(rollouts), "live": None if live is None else dataclasses.asdict(live)}
    return page(
        title=f"{title} · rewardflow",
        body=body,
        css=_own("page.css"),
        script=_own("page.js"),
        data=data,
        asks_own_server=live is not None,
    )


def _own(name: str) -> str:
    return (resources.files("rewardflow.report") / name).read_text("utf-8")
