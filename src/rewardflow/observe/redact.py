"""Removes secrets from text before it is logged, stored or shown.

Always true: everything that looks like a key, and every secret in the environment, becomes `[redacted]`; redacting
twice changes nothing more; the time is linear in the length of any text. When in doubt, it removes too much: a lost
word in an error message is cheap, a key in a log is not.
"""

from __future__ import annotations

import os
import re
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 8  # a shorter value from the environment may be part of ordinary words

_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)S?(?:_?\d+)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _SecretPattern:
    """A pattern that finds secrets. `markers` and `hint` are quick checks of the lower-case text that rule it out."""

    markers: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str = REDACTED
    hint: re.Pattern[str] | None = None

    def is_absent(self, lowered: str) -> bool:
        for marker in self.markers:
            if marker in lowered:
                return self.hint is not None and self.hint.search(lowered) is None
        return True


# Linear time: a repetition that can fail late never starts again inside the text it has already scanned.
_QUOTE = r"\\{0,3}[\"']?"  # also inside JSON that is itself a JSON string
_IS = rf"{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}(?:b(?=[\"']))?{_QUOTE}"  # between a name and its value
_NEXT = r"[\"'],\s{0,4}b?[\"']"  # the same in a list of header pairs
_SCHEME = r"(?:basic|bearer|digest|token|apikey|key|negotiate|aws4-hmac-sha256)[ \t]{1,4}"
_VALUE = r"(?!\[redacted\])(?:(?<=\")[^\"\n]+|(?<=')[^'\n]+|(?!(?:none|null|true|false)\b)[^\s\"'\\&,;<>()\[\]{}]{4,})"
# Each name begins with fixed letters, so the search can skip ahead; lookbehinds then check what precedes them.
_SECRET = (
    r"key(?:(?<=apikey)|(?<=api[ _-]key)|(?<=accesskey)|(?<=(?:access|secret)[_-]key)|(?<=private[_-]key)"
    r"|(?<=subscription[_-]key))(?:[ _-](?:id|provided))?"
    r"|token(?<=[_-]token)|secret|password|passwd|signature|credential"
)


def _prefixed(*prefixes: str, pattern: str, before: str = "A-Za-z0-9") -> _SecretPattern:
    """Finds keys with a service's prefix. A prefix after one of the characters `before` is part of a word."""
    start = "|".join(re.escape(prefix) for prefix in prefixes)
    markers = tuple(prefix.lower() for prefix in prefixes)
    return _SecretPattern(markers, re.compile(rf"(?<![{before}])(?:{start}){pattern}"))


def _named(*markers: str, pattern: str) -> _SecretPattern:
    """Finds values that follow a name. The name is group 1 and stays; upper or lower case is slow to search for."""
    hint = re.compile(pattern, re.ASCII)
    return _SecretPattern(markers, re.compile(pattern, re.ASCII | re.IGNORECASE), rf"\g<1>{REDACTED}", hint)


_PATTERNS = (
    _SecretPattern(
        ("private key-----",),
        re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.DOTALL),
    ),
    _prefixed("sk-", pattern=r"[A-Za-z0-9_*-]{8,}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek, ...
    _prefixed("hf_", "gsk_", "r8_", "ghp_", "gho_", "ghs_", "ghu_", "github_pat_", pattern=r"[A-Za-z0-9_]{16,}"),
    _prefixed("xai-", "csk-", "nvapi-", "pplx-", "glpat-", "xoxb-", "xoxp-", pattern=r"[A-Za-z0-9_-]{16,}"),
    _prefixed("AIza", "ya29.", pattern=r"[A-Za-z0-9_-]{16,}"),  # Google
    _prefixed("AKIA", "ASIA", pattern=r"[A-Z0-9]{16}(?![A-Za-z0-9])"),  # AWS
    _prefixed(  # JSON web tokens
        "eyJ", before="A-Za-z0-9_-", pattern=r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"
    ),
    _named("bearer", pattern=r"(bearer\s{1,4})(?!auth(?:entication|orization)\b)[a-z0-9._~+/=-]{8,}"),
    _named("authorization", pattern=rf"(authorization(?:{_IS}|{_NEXT})(?>{_SCHEME})?+){_VALUE}"),
    _named(
        *("key", "token", "secret", "passw", "signature", "credential"),
        pattern=rf"((?:{_SECRET})(?:{_IS}|{_NEXT})){_VALUE}",
    ),
    _SecretPattern(  # as shells write it
        ("_key=",), re.compile(rf"(?<=[A-Z0-9])(_KEY=[\"']?){_VALUE}"), rf"\g<1>{REDACTED}"
    ),
    _named("token", pattern=rf"(token(?:=|[\"']\s{{0,4}}[:=]\s{{0,4}}){_QUOTE}){_VALUE}"),  # "token: x" is prose
    _named("key=", "sig=", "token=", "code=", pattern=r"([?&](?:key|sig|token|code)=)[^&#\s\"'<>]+"),
    _named("://", pattern=r"(://)[^\s/?#\"'<>]+(?=@)"),  # user:password@host
)


class Redactor:
    """Redacts what the patterns above find, and the secrets of one environment, which it reads when it is built."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._literals = _secrets_of(environ)

    def redact(self, text: str) -> str:
        for literal in self._literals:
            if literal in text:
                text = text.replace(literal, REDACTED)
        lowered = text.lower()
        for secret in _PATTERNS:
            if not secret.is_absent(lowered):
                text = secret.pattern.sub(secret.replacement, text)
                lowered = text.lower()
        return text


_READ_EVERY_S = 1.0  # users set keys after the import, above all in notebooks
_process: Redactor | None = None
_read_at_s = 0.0


def redact(text: str) -> str:
    """Returns the text without secrets. Reads this process's environment again about once a second."""
    global _process, _read_at_s
    now_s = time.monotonic()
    if _process is None or now_s - _read_at_s > _READ_EVERY_S:
        _process, _read_at_s = Redactor(os.environ), now_s
    return _process.redact(text)


def _secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the secrets of the environment, longest first, because one secret may begin with another."""
    values = {value.strip() for name, value in environ.items() if _SECRET_NAME.search(name)}
    secrets = {value for value in values if len(value) >= MIN_SECRET_LENGTH and value not in REDACTED}
    return tuple(sorted(secrets | {urllib.parse.quote(value, safe="") for value in secrets}, key=len, reverse=True))
