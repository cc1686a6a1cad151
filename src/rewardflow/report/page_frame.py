"""The frame of every page: header, sections, footer, style and script.

Always true: a page is one file that sends no request. Its script is the same on every page, and shows rollouts where
there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from rewardflow.drawing.html_page import page
from rewardflow.drawing.markup import Child, Markup, tag


def framed_page(
    title: str,
    subtitle: Child,
    top: Child,
    sections: Sequence[Markup | None],
    *,
    rollouts: Sequence[Mapping[str, Any]] = (),
    made_by: str = "rewardflow report",
) -> str:
    """Returns the whole HTML document; a section that is None is left out."""
    footer = f"Made by {made_by}. Text of models and judges is shown as it is, and runs nowhere."
    body = Markup(
        tag("header", tag("h1", title), subtitle)
        + tag("main", top, [each for each in sections if each is not None])
        + tag("footer", tag("p", footer))
        + tag("div", id="tip", role="status", hidden=True)
    )
    data = {"rollouts": list(rollouts)}
    return page(title=f"{title} · rewardflow", body=body, css=_own("page.css"), script=_own("page.js"), data=data)


def _own(name: str) -> str:
    return (resources.files("rewardflow.report") / name).read_text("utf-8")
