"""Makes one HTML file that holds everything it needs and sends no request.

Always true: the page's content security policy forbids every request (of a served page, every one but to its own
server), every form and every script but the one whose hash it names, so that even text that escaped wrongly cannot run;
data for the script is JSON that cannot close its element.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from rewardflow.drawing.markup import Markup, joined, tag
from rewardflow.observe.events import plain

# Characters that could close the element, open a comment or end a line of a script; JSON can escape any character.
_UNSAFE_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(
    *, title: str, body: Markup, css: str, script: str, data: Mapping[str, Any], asks_own_server: bool = False
) -> str:
    """Makes the page. `css` and `script` are the project's own files; the script reads `data` (any JSON) in `#data`."""
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(css)}'",
            "img-src data:",
            *(["connect-src 'self'"] if asks_own_server else []),
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
            # Without an icon in the page, browsers request one from the server.
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
    """Replaces halves of surrogate pairs, which policies emit and no encoding can write."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else float(value)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
