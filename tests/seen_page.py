"""A page that a browser has open, and what it said about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


@dataclass(slots=True)
class Seen:
    """A page that is open, and everything that a careless one would do."""

    page: Page
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def assert_quiet(self) -> None:
        """Nothing on the console, no error, nothing asked for but the file itself, no dialog."""
        assert self.console == []
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith("data:,")] == [self.page.url]
        assert self.dialogs == []
