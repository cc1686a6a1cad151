"""One HTML file that holds all it needs and asks nobody for anything.

Always true: the page's policy forbids every request, every form and every script but the one whose hash it names, so
that even text which slipped through the escaping could not act; data for the script is JSON that cannot end its
element.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from rewardflow.drawing.markup import Markup, joined, tag
from rewardflow.observe.events import plain

# What could end the element, open a comment or end a line of a script. JSON may write any character so.
_UNSAFE_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(*, title: str, body: Markup, css: str, script: str, data: Mapping[str, Any]) -> str:
    """`css` and `script` are the project's own files; `data` may hold anything, and is in `#data` for the script."""
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(css)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    head = joined(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="referrer", content="no-referrer"),
            # A page without an icon of its own makes browsers ask a server for one.
            tag("link", rel="icon", href="data:,"),
            tag("title", title),
            tag("style", Markup(css)),
        ]
    )
    scripts = joined(
        [tag("script", json_for_script(data), type="application/json", id="data"), tag("script", Markup(script))]
    )
    return "<!DOCTYPE html>\n" + tag("html", tag("head", head), tag("body", body, scripts), lang="en") + "\n"


def json_for_script(data: Mapping[str, Any]) -> Markup:
    text = orjson.dumps(_encodable(plain(data))).decode()
    for character, escape in _UNSAFE_IN_SCRIPT.items():
        text = text.replace(character, escape)
    return Markup(text)


def _encodable(value: Any) -> Any:
    """Policies emit halves of surrogate pairs, which no encoding takes."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else float(value)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
