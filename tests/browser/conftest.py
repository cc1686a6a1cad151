"""A real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from seen_page import Seen

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail("no chromium; `make test-browser` says how to get one")
    with sync_playwright() as playwright:
        # Containers run as root and without user namespaces, where chromium's sandbox cannot start.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look_at(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Seen]]:
    """`look_at(html, width=..., scheme=...)`."""
    contexts = []

    def look_at(html: str, *, width: int = 1280, scheme: str = "light") -> Seen:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(html, "utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        seen = Seen(context.new_page())
        seen.page.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
        seen.page.goto(file.as_uri())
        return seen

    yield look_at
    for context in contexts:
        context.close()
